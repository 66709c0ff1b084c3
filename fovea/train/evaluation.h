// Evaluation of a model on the validation side of a corpus.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "fovea/data/batch_stream.h"
#include "fovea/nn/transformer.h"
#include "fovea/runtime/communicator.h"

namespace fovea {

struct SourceEvaluation {
  std::string source;
  double nll = 0;       ///< nats, sum
  int64_t targets = 0;  ///< tokens predicted
  int64_t bytes = 0;    ///< of text predicted
  int64_t answers = 0;  ///< documents whose answer was asked for (DataSource::scored_tail)
  int64_t wrong = 0;    ///< of them, those with any token that was not the likeliest

  double loss() const;           ///< nats per token
  double perplexity() const;     ///< per token
  double bits_per_byte() const;  ///< spec 9.3
};

/// The pruned model of Focus: a number of its own, always with the pairs it keeps (spec 11.7).
struct HardEvaluation {
  std::vector<SourceEvaluation> sources;
  std::vector<double> pairs_kept;     ///< per layer with Focus: share of all pairs
  std::vector<double> distant_kept;   ///< of distant pairs (i - j >= w, not sinks)
  std::vector<double> largest_group;  ///< share of tokens whose first choice is the largest group
  std::vector<double> tiles_visited;  ///< of those that a causal mask has; 1 without a grouped plan
  std::vector<std::string> plans;     ///< of the last batch: "grouped classes", "reference dense"
};

struct EvaluationResult {
  std::vector<SourceEvaluation> sources;
  std::optional<HardEvaluation> hard;  ///< of models with Focus

  /// Over all sources together.
  SourceEvaluation total() const;
  /// Unweighted mean of the sources' perplexities (spec 3.7).
  double mean_perplexity() const;
  nlohmann::ordered_json to_json() const;
  /// CheckpointError where a key is missing or of another type.
  static EvaluationResult from_json(const nlohmann::ordered_json& json);
};

/// Called with the number of batches done, of all ranks.
using EvaluationProgress = std::function<void(int64_t done)>;

/// The model's loss on fixed validation batches, without gradients and dropout. Numbers do not
/// depend on the number of rows a batch but for rounding. Ranks share the batches.
EvaluationResult evaluate(const Transformer& model, const std::vector<ValidationSet>& sets,
                          const EvaluationProgress& progress = {}, Communicator& ranks = alone());
/// The same with the hard rule of Focus; the model's mode is restored.
HardEvaluation evaluate_hard(Transformer& model, const std::vector<ValidationSet>& sets,
                             const EvaluationProgress& progress = {},
                             Communicator& ranks = alone());

/// A batch as tensors on the model's device; documents and positions stay undefined where every row
/// is one document.
ModelInput model_input(const Batch& batch, at::Device device);
/// Its targets, int64 [rows, length].
at::Tensor target_tensor(const Batch& batch, at::Device device);

}  // namespace fovea
