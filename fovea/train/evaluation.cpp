// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/evaluation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
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
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const SourceEvaluation& source : sources) {
    list.push_back({{"source", source.source},
                    {"nll", source.nll},
                    {"targets", source.targets},
                    {"bytes", source.bytes},
                    {"loss", source.loss()},
                    {"perplexity", source.perplexity()},
                    {"bits_per_byte", source.bits_per_byte()}});
  }
  return {{"loss", all.loss()},
          {"perplexity", all.perplexity()},
          {"bits_per_byte", all.bits_per_byte()},
          {"mean_perplexity", mean_perplexity()},
          {"sources", std::move(list)}};
}

EvaluationResult EvaluationResult::from_json(const nlohmann::ordered_json& json) {
  EvaluationResult result;
  try {
    for (const auto& source : json.at("sources")) {
      // A sum that was not finite is null in JSON.
      const auto& nll = source.at("nll");
      result.sources.push_back({.source = source.at("source").get<std::string>(),
                                .nll = nll.is_null() ? std::nan("") : nll.get<double>(),
                                .targets = source.at("targets").get<int64_t>(),
                                .bytes = source.at("bytes").get<int64_t>()});
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
  const at::NoGradGuard no_grad;
  EvaluationResult result;
  for (const ValidationSet& set : sets) {
    SourceEvaluation source{.source = set.source, .targets = set.targets, .bytes = set.bytes};
    for (const Batch& batch : set.batches) {
      const at::Tensor nll =
          model.token_nll(model_input(batch, model.device()), target_tensor(batch, model.device()));
      source.nll += nll.sum(at::kDouble).item<double>();
    }
    result.sources.push_back(std::move(source));
  }
  return result;
}

}  // namespace fovea
