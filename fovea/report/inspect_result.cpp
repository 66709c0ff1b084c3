// Classes of kernels, and the JSON of an inspection.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/inspect_result.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

Json group_json(const InspectGroup& group) {
  Json tokens = Json::array();
  for (const InspectToken& token : group.top_tokens)
    tokens.push_back({{"text", token.text}, {"count", token.count}});
  return {{"group", group.group},           {"share", group.share},
          {"confidence", group.confidence}, {"main_class", group.main_class},
          {"purity", group.purity},         {"top_tokens", std::move(tokens)}};
}

Json focus_json(const InspectFocus& focus) {
  Json groups = Json::array(), pairs = Json::array();
  for (const InspectGroup& group : focus.groups) groups.push_back(group_json(group));
  for (const InspectPair& pair : focus.pairs) {
    pairs.push_back({{"query", pair.query},
                     {"query_text", pair.query_text},
                     {"key", pair.key},
                     {"key_text", pair.key_text},
                     {"agreement", pair.agreement}});
  }
  return {{"layer", focus.layer},
          {"pairs_kept", focus.pairs_kept},
          {"distant_kept", focus.distant_kept},
          {"groups", std::move(groups)},
          {"first_choices", focus.first_choices},
          {"pairs", std::move(pairs)}};
}

}  // namespace

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

Json groups_json(const InspectResult& result) {
  Json models = Json::array();
  for (const InspectModel& model : result.models) {
    Json layers = Json::array();
    for (const InspectFocus& focus : model.focus) layers.push_back(focus_json(focus));
    models.push_back(
        {{"name", model.name}, {"tokens", model.tokens}, {"layers", std::move(layers)}});
  }
  return {{"version", 1}, {"tokens", result.tokens}, {"models", std::move(models)}};
}

Json inspect_json(const InspectResult& result) {
  Json models = Json::array();
  for (const InspectModel& model : result.models) {
    Json layers = Json::array(), kernels = Json::array(), mixes = Json::array(),
         focus = Json::array();
    for (const InspectLayer& layer : model.layers) {
      layers.push_back({{"layer", layer.layer},
                        {"pipeline", layer.pipeline},
                        {"temperature", layer.temperature},
                        {"entropy", layer.entropy},
                        {"largest_weight", layer.largest_weight},
                        {"sink_mass", layer.sink_mass}});
    }
    for (const InspectKernel& k : model.kernels) {
      kernels.push_back({{"layer", k.layer},
                         {"head", k.head},
                         {"where", k.before ? "before" : "after"},
                         {"class", kernel_kind_name(kernel_kind(k.weights, k.queries, k.keys))},
                         {"queries", k.queries},
                         {"keys", k.keys},
                         {"weights", k.weights}});
    }
    for (const InspectMix& mix : model.mixes) {
      mixes.push_back({{"layer", mix.layer},
                       {"where", mix.before ? "before" : "after"},
                       {"diagonal_mean", mix.diagonal_mean},
                       {"diagonal_least", mix.diagonal_least},
                       {"other_mean_size", mix.other_mean_size}});
    }
    for (const InspectFocus& layer : model.focus) focus.push_back(focus_json(layer));
    models.push_back({{"name", model.name},
                      {"layers", std::move(layers)},
                      {"kernels", std::move(kernels)},
                      {"head_mixes", std::move(mixes)},
                      {"focus", std::move(focus)}});
  }
  return {{"version", 1}, {"tokens", result.tokens}, {"models", std::move(models)}};
}

}  // namespace fovea
