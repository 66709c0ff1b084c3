// Writes the record of a run: metrics.jsonl and TensorBoard files.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fovea/attention/mechanisms/focus.h"
#include "fovea/checkpoint/run_folder.h"
#include "fovea/report/metrics_log.h"
#include "fovea/report/tensorboard.h"
#include "fovea/train/evaluation.h"

namespace fovea {

/// ln of the softmax's sum over a step's targets (spec 7.4): z-loss keeps it near 0.
struct LnZ {
  double mean = 0, root_mean_square = 0;
};

/// One line of metrics.jsonl (keys: docs/run-folder.md).
struct StepRecord {
  int64_t step = 0;
  int64_t tokens = 0;
  double loss = 0;
  double learning_rate = 0;
  double decay_step = 0;  ///< learning rate x weight decay: the share that a step takes off weights
  double gradient_norm = 0;
  std::optional<LnZ> ln_z;
  double tokens_per_second = 0;
  double step_seconds = 0;
  double load_seconds = 0;
  /// Seconds in which gradients were summed over ranks, and for which the step waited for them.
  double sum_seconds = 0, sum_wait_seconds = 0;
  double seconds = 0;
  double flops = 0;  ///< of the model, a second
  int64_t peak_memory_bytes = 0;
  std::string attention_path;
  std::string stage;
  std::vector<double> temperature;  ///< per layer; empty where no layer has one
  double clipped_share = 0;
  std::vector<FocusStatistics> focus;  ///< per layer with Focus
  std::optional<EvaluationResult> evaluation;

  nlohmann::ordered_json to_json() const;
};

class RunRecord {
 public:
  /// Cuts the records after `step` (0 for a run that begins), then appends. IoError.
  RunRecord(const RunPaths& paths, int64_t step);

  void write(const StepRecord& record);
  /// Makes everything written so far durable.
  void sync();

 private:
  MetricsLog metrics_;
  TensorBoardWriter tensorboard_;
};

}  // namespace fovea
