// Classes of kernels, and the JSON of an inspection.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/inspect_result.h"

#include <cmath>
#include <utility>

#include "fovea/text/result_json.h"

namespace fovea {
template <class V>
void describe(V& v, InspectToken& t) {
  v("text", t.text);
  v("count", t.count);
}

template <class V>
void describe(V& v, InspectGroup& g) {
  v("group", g.group);
  v("share", g.share);
  v("confidence", g.confidence);
  v("main_class", g.main_class);
  v("purity", g.purity);
  v("top_tokens", g.top_tokens);
}

template <class V>
void describe(V& v, InspectPair& p) {
  v("query", p.query);
  v("query_text", p.query_text);
  v("key", p.key);
  v("key_text", p.key_text);
  v("agreement", p.agreement);
}

template <class V>
void describe(V& v, InspectFocus& f) {
  v("layer", f.layer);
  v("pairs_kept", f.pairs_kept);
  v("distant_kept", f.distant_kept);
  v("groups", f.groups);
  v("first_choices", f.first_choices);
  v("pairs", f.pairs);
}

template <class V>
void describe(V& v, InspectLayer& l) {
  v("layer", l.layer);
  v("pipeline", l.pipeline);
  v("temperature", l.temperature);
  v("entropy", l.entropy);
  v("largest_weight", l.largest_weight);
  v("sink_mass", l.sink_mass);
}

template <class V>
void describe(V& v, InspectKernel& k) {
  v("layer", k.layer);
  v("head", k.head);
  v.derived("where", k.before ? "before" : "after");
  v.derived("class", kernel_kind_name(kernel_kind(k.weights, k.queries, k.keys)));
  v("queries", k.queries);
  v("keys", k.keys);
  v("weights", k.weights);
}

template <class V>
void describe(V& v, InspectMix& m) {
  v("layer", m.layer);
  v.derived("where", m.before ? "before" : "after");
  v("diagonal_mean", m.diagonal_mean);
  v("diagonal_least", m.diagonal_least);
  v("other_mean_size", m.other_mean_size);
}

template <class V>
void describe(V& v, InspectModel& m) {
  v("name", m.name);
  v("layers", m.layers);
  v("kernels", m.kernels);
  v("head_mixes", m.mixes);
  v("focus", m.focus);
}

std::string_view kernel_kind_name(KernelKind kind) {
  switch (kind) {
    case KernelKind::identity:
      return "identity";
    case KernelKind::diagonal:
      return "diagonal";
    case KernelKind::priming:
      return "priming";
    case KernelKind::edge:
      return "edge";
    case KernelKind::mixed:
      break;
  }
  return "mixed";
}

KernelKind kernel_kind(const std::vector<double>& weights, int64_t queries, int64_t keys) {
  const int64_t now = (keys - 1) / 2;
  double positive = 0.0, negative = 0.0, identity = 0.0, diagonal = 0.0, earlier = 0.0;
  for (int64_t a = 0; a < queries; ++a) {
    for (int64_t b = 0; b < keys; ++b) {
      const double w = weights[static_cast<size_t>(a * keys + b)], size = std::abs(w);
      const int64_t back = queries - 1 - a;
      (w > 0.0 ? positive : negative) += size;
      if (back == 0 && b == now) identity += size;
      if (back == now - b) diagonal += size;
      if (back > 0) earlier += size;
    }
  }
  const double all = positive + negative;
  if (all == 0.0) return KernelKind::mixed;
  const double least_side = std::min(positive, negative) / all;
  if (identity / all > 0.6) return KernelKind::identity;
  if (least_side > 0.3) return KernelKind::edge;
  if (diagonal / all > 0.6) return KernelKind::diagonal;
  if (earlier / all > 0.6) return KernelKind::priming;
  return KernelKind::mixed;
}

nlohmann::ordered_json groups_json(const InspectResult& result) {
  nlohmann::ordered_json models = nlohmann::ordered_json::array();
  for (const InspectModel& model : result.models)
    models.push_back(
        {{"name", model.name}, {"tokens", model.tokens}, {"layers", result_json(model.focus)}});
  return {{"version", 1}, {"tokens", result.tokens}, {"models", std::move(models)}};
}

nlohmann::ordered_json inspect_json(const InspectResult& result) {
  return {{"version", 1}, {"tokens", result.tokens}, {"models", result_json(result.models)}};
}

}  // namespace fovea
