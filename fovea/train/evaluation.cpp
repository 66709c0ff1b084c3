// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/evaluation.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "fovea/base/error.h"
#include "fovea/nn/layer_gather.h"
#include "fovea/text/result_json.h"

namespace fovea {
namespace {

at::Tensor to_tensor(const std::vector<int32_t>& values, const Batch& batch, at::Device device) {
  const at::Tensor view = at::from_blob(const_cast<int32_t*>(values.data()),
                                        {batch.rows, batch.length}, at::TensorOptions(at::kInt));
  return view.to(device, at::kLong);
}

/// Adds the documents of a batch that have targets, and those with a wrong one (spec 3.8).
void count_answers(const Transformer& model, const Batch& batch, SourceEvaluation& source) {
  const ModelInput input = model_input(batch, model.device());
  const at::Tensor targets = target_tensor(batch, model.device()).flatten();
  const at::Tensor places = targets.ge(0).nonzero().flatten();
  const at::Tensor states = model.hidden(input).flatten(0, 1).index_select(0, places);
  const at::Tensor right =
      model.logits(states).argmax(-1).eq(targets.index_select(0, places)).cpu().contiguous();
  const at::Tensor where = places.cpu().contiguous();
  std::map<std::pair<int64_t, int32_t>, bool> documents;  // (row, document): all right
  for (int64_t n = 0; n < where.numel(); ++n) {
    const int64_t place = where.const_data_ptr<int64_t>()[n];
    const auto [entry, is_new] = documents.try_emplace(
        {place / batch.length, batch.documents[static_cast<size_t>(place)]}, true);
    entry->second = entry->second && right.const_data_ptr<bool>()[n];
  }
  for (const auto& [document, all_right] : documents) {
    ++source.answers;
    source.wrong += all_right ? 0 : 1;
  }
}

/// All ranks gather sharded layers together: one that had `own` batches of a set, fewer than
/// others, walks as often as they do.
void walk_along(const Transformer& model, const ValidationSet& set, int64_t own,
                const Communicator& ranks) {
  const int64_t most = (std::ssize(set.batches) + ranks.size() - 1) / ranks.size();
  if (LayerGather::current() == nullptr || own == most) return;
  const Batch& batch = set.batches.front();
  model.hidden(model_input(batch, model.device()));
  SourceEvaluation nothing;
  if (set.answers) count_answers(model, batch, nothing);
}

using BatchSeen = std::function<void(const ForwardInfo&)>;

std::vector<SourceEvaluation> score(const Transformer& model,
                                    const std::vector<ValidationSet>& sets, const BatchSeen& seen,
                                    const EvaluationProgress& progress, Communicator& ranks) {
  const at::NoGradGuard no_grad;
  int64_t done = 0;
  std::vector<SourceEvaluation> sources;
  for (const ValidationSet& set : sets) {
    SourceEvaluation source{.source = set.source, .targets = set.targets, .bytes = set.bytes};
    int64_t own = 0;
    for (const Batch& batch : set.batches) {
      if (done++ % ranks.size() != ranks.rank()) continue;
      ++own;
      ForwardInfo info;
      const at::Tensor nll =
          model.token_nll(model_input(batch, model.device()), target_tensor(batch, model.device()),
                          seen ? &info : nullptr);
      source.nll += nll.sum(at::kDouble).item<double>();
      if (seen) seen(info);
      if (set.answers) count_answers(model, batch, source);
      if (progress) progress(done);
    }
    walk_along(model, set, own, ranks);
    double counts[] = {source.nll, static_cast<double>(source.answers),
                       static_cast<double>(source.wrong)};
    ranks.sum(counts);
    source.nll = counts[0];
    source.answers = static_cast<int64_t>(counts[1]);
    source.wrong = static_cast<int64_t>(counts[2]);
    sources.push_back(std::move(source));
  }
  return sources;
}

}  // namespace

double SourceEvaluation::loss() const { return nll / static_cast<double>(targets); }
double SourceEvaluation::perplexity() const { return std::exp(loss()); }
double SourceEvaluation::bits_per_byte() const {
  return nll / (static_cast<double>(bytes) * std::numbers::ln2);
}

SourceEvaluation EvaluationResult::total() const {
  SourceEvaluation sum{.source = "total"};
  for (const SourceEvaluation& source : sources) {
    sum.nll += source.nll;
    sum.targets += source.targets;
    sum.bytes += source.bytes;
  }
  return sum;
}

double EvaluationResult::mean_perplexity() const {
  double sum = 0;
  for (const SourceEvaluation& source : sources) sum += source.perplexity();
  return sum / static_cast<double>(sources.size());
}

template <class V>
void describe(V& v, SourceEvaluation& s) {
  v("source", s.source);
  v("nll", s.nll);
  v("targets", s.targets);
  v("bytes", s.bytes);
  v.derived("loss", s.loss());
  v.derived("perplexity", s.perplexity());
  v.derived("bits_per_byte", s.bits_per_byte());
  v.optional("answers", s.answers, s.answers > 0);
  v.optional("wrong", s.wrong, s.answers > 0);
}

template <class V>
void describe(V& v, HardEvaluation& h) {
  const SourceEvaluation all = EvaluationResult{.sources = h.sources, .hard = {}}.total();
  v.derived("loss", all.loss());
  v.derived("perplexity", all.perplexity());
  v("pairs_kept", h.pairs_kept);
  v("distant_kept", h.distant_kept);
  v("largest_group", h.largest_group);
  v.optional("tiles_visited", h.tiles_visited);
  v.optional("plans", h.plans);
  v("sources", h.sources);
}

template <class V>
void describe(V& v, EvaluationResult& r) {
  const SourceEvaluation all = r.total();
  v.derived("loss", all.loss());
  v.derived("perplexity", all.perplexity());
  v.derived("bits_per_byte", all.bits_per_byte());
  v.derived("mean_perplexity", r.mean_perplexity());
  v("sources", r.sources);
  v.optional("hard", r.hard, r.hard.has_value());
}

nlohmann::ordered_json EvaluationResult::to_json() const { return described_json(*this); }

EvaluationResult EvaluationResult::from_json(const nlohmann::ordered_json& json) {
  EvaluationResult result;
  read_result<CheckpointError>(json, "evaluation", result);
  return result;
}

ModelInput model_input(const Batch& batch, at::Device device) {
  ModelInput input{.tokens_bt = to_tensor(batch.tokens, batch, device)};
  // Rows of one document each, the common case of long texts, need no mask but the causal one.
  const bool one_document = std::all_of(batch.documents.begin(), batch.documents.end(),
                                        [](int32_t document) { return document == 0; });
  if (!one_document) {
    input.documents_bt = to_tensor(batch.documents, batch, at::kCPU);
    input.positions_bt = to_tensor(batch.positions, batch, at::kCPU);
  }
  return input;
}

at::Tensor target_tensor(const Batch& batch, at::Device device) {
  return to_tensor(batch.targets, batch, device);
}

EvaluationResult evaluate(const Transformer& model, const std::vector<ValidationSet>& sets,
                          const EvaluationProgress& progress, Communicator& ranks) {
  return {.sources = score(model, sets, {}, progress, ranks), .hard = std::nullopt};
}

HardEvaluation evaluate_hard(Transformer& model, const std::vector<ValidationSet>& sets,
                             const EvaluationProgress& progress, Communicator& ranks) {
  HardEvaluation result;
  const FocusMode before = model.compute().focus;
  model.compute().focus = FocusMode::hard;
  int64_t batches = 0;
  result.sources = score(
      model, sets,
      [&](const ForwardInfo& info) {
        size_t n = 0;
        for (const FocusObservation& layer : info.focus) {
          if (!layer.defined()) continue;
          for (const auto& [list, value] :
               {std::pair{&result.pairs_kept, layer.pairs.all},
                {&result.distant_kept, layer.pairs.distant},
                {&result.largest_group, layer.statistics().largest_hard},
                {&result.tiles_visited, layer.tiles_visited()}}) {
            if (batches == 0) list->push_back(0.0);
            (*list)[n] += value;
          }
          if (batches == 0) result.plans.emplace_back();
          result.plans[n] = layer.plan();
          ++n;
        }
        ++batches;
      },
      progress, ranks);
  model.compute().focus = before;
  const double all_batches = std::max(ranks.sum(static_cast<double>(batches)), 1.0);
  const auto layers = static_cast<size_t>(ranks.max(static_cast<double>(result.plans.size())));
  result.plans.resize(layers);
  for (auto* list :
       {&result.pairs_kept, &result.distant_kept, &result.largest_group, &result.tiles_visited}) {
    list->resize(layers);  // of a rank without a batch
    ranks.sum(*list);
    for (double& value : *list) value /= all_batches;
  }
  return result;
}

}  // namespace fovea
