// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/evaluation.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>

#include "fovea/base/error.h"

namespace fovea {
namespace {

at::Tensor to_tensor(const std::vector<int32_t>& values, const Batch& batch, at::Device device) {
  const at::Tensor view = at::from_blob(const_cast<int32_t*>(values.data()),
                                        {batch.rows, batch.length}, at::TensorOptions(at::kInt));
  return view.to(device, at::kLong);
}

nlohmann::ordered_json sources_json(const std::vector<SourceEvaluation>& sources) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const SourceEvaluation& source : sources) {
    list.push_back({{"source", source.source},
                    {"nll", source.nll},
                    {"targets", source.targets},
                    {"bytes", source.bytes},
                    {"loss", source.loss()},
                    {"perplexity", source.perplexity()},
                    {"bits_per_byte", source.bits_per_byte()}});
    if (source.answers > 0) {
      list.back()["answers"] = source.answers;
      list.back()["wrong"] = source.wrong;
    }
  }
  return list;
}

std::vector<SourceEvaluation> sources_from(const nlohmann::ordered_json& list) {
  std::vector<SourceEvaluation> sources;
  for (const auto& source : list) {
    // A sum that was not finite is null in JSON.
    const auto& nll = source.at("nll");
    sources.push_back({.source = source.at("source").get<std::string>(),
                       .nll = nll.is_null() ? std::nan("") : nll.get<double>(),
                       .targets = source.at("targets").get<int64_t>(),
                       .bytes = source.at("bytes").get<int64_t>(),
                       .answers = source.value("answers", int64_t{0}),
                       .wrong = source.value("wrong", int64_t{0})});
  }
  return sources;
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

using BatchSeen = std::function<void(const ForwardInfo&)>;

std::vector<SourceEvaluation> score(const Transformer& model,
                                    const std::vector<ValidationSet>& sets, const BatchSeen& seen) {
  const at::NoGradGuard no_grad;
  std::vector<SourceEvaluation> sources;
  for (const ValidationSet& set : sets) {
    SourceEvaluation source{.source = set.source, .targets = set.targets, .bytes = set.bytes};
    for (const Batch& batch : set.batches) {
      ForwardInfo info;
      const at::Tensor nll =
          model.token_nll(model_input(batch, model.device()), target_tensor(batch, model.device()),
                          seen ? &info : nullptr);
      source.nll += nll.sum(at::kDouble).item<double>();
      if (seen) seen(info);
      if (set.answers) count_answers(model, batch, source);
    }
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

nlohmann::ordered_json EvaluationResult::to_json() const {
  const SourceEvaluation all = total();
  nlohmann::ordered_json json = {{"loss", all.loss()},
                                 {"perplexity", all.perplexity()},
                                 {"bits_per_byte", all.bits_per_byte()},
                                 {"mean_perplexity", mean_perplexity()},
                                 {"sources", sources_json(sources)}};
  if (hard) {
    const EvaluationResult pruned{.sources = hard->sources, .hard = std::nullopt};
    json["hard"] = {{"loss", pruned.total().loss()},
                    {"perplexity", pruned.total().perplexity()},
                    {"pairs_kept", hard->pairs_kept},
                    {"distant_kept", hard->distant_kept},
                    {"largest_group", hard->largest_group},
                    {"tiles_visited", hard->tiles_visited},
                    {"plans", hard->plans},
                    {"sources", sources_json(hard->sources)}};
  }
  return json;
}

EvaluationResult EvaluationResult::from_json(const nlohmann::ordered_json& json) {
  EvaluationResult result;
  try {
    result.sources = sources_from(json.at("sources"));
    if (const auto hard = json.find("hard"); hard != json.end()) {
      const auto numbers = [&](const char* key) {
        return hard->at(key).get<std::vector<double>>();
      };
      result.hard = {.sources = sources_from(hard->at("sources")),
                     .pairs_kept = numbers("pairs_kept"),
                     .distant_kept = numbers("distant_kept"),
                     .largest_group = numbers("largest_group"),
                     .tiles_visited = hard->value("tiles_visited", std::vector<double>()),
                     .plans = hard->value("plans", std::vector<std::string>())};
    }
  } catch (const nlohmann::json::exception& error) {
    fail<CheckpointError>("evaluation", "the stored evaluation is damaged: {}", error.what());
  }
  return result;
}

ModelInput model_input(const Batch& batch, at::Device device) {
  ModelInput input{.tokens_bt = to_tensor(batch.tokens, batch, device)};
  // Rows of one document each, the common case of long texts, need no mask but the causal one.
  const bool one_document = std::all_of(batch.documents.begin(), batch.documents.end(),
                                        [](int32_t document) { return document == 0; });
  if (!one_document) {
    input.documents_bt = to_tensor(batch.documents, batch, device);
    input.positions_bt = to_tensor(batch.positions, batch, device);
  }
  return input;
}

at::Tensor target_tensor(const Batch& batch, at::Device device) {
  return to_tensor(batch.targets, batch, device);
}

EvaluationResult evaluate(const Transformer& model, const std::vector<ValidationSet>& sets) {
  return {.sources = score(model, sets, {}), .hard = std::nullopt};
}

HardEvaluation evaluate_hard(Transformer& model, const std::vector<ValidationSet>& sets) {
  HardEvaluation result;
  const FocusMode before = model.compute().focus;
  model.compute().focus = FocusMode::hard;
  int64_t batches = 0;
  result.sources = score(model, sets, [&](const ForwardInfo& info) {
    size_t n = 0;
    for (const FocusObservation& layer : info.focus) {
      if (!layer.defined()) continue;
      for (const auto& [list, value] : {std::pair{&result.pairs_kept, layer.pairs.all},
                                        {&result.distant_kept, layer.pairs.distant},
                                        {&result.largest_group, layer.statistics.largest_hard},
                                        {&result.tiles_visited, layer.tiles_visited()}}) {
        if (batches == 0) list->push_back(0.0);
        (*list)[n] += value;
      }
      if (batches == 0) result.plans.emplace_back();
      result.plans[n] = layer.plan();
      ++n;
    }
    ++batches;
  });
  model.compute().focus = before;
  for (auto* list :
       {&result.pairs_kept, &result.distant_kept, &result.largest_group, &result.tiles_visited}) {
    for (double& value : *list) value /= static_cast<double>(std::max<int64_t>(batches, 1));
  }
  return result;
}

}  // namespace fovea
