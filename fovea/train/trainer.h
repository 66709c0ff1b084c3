// The trainer: one loop for every way of training.
//
// A step is `accumulation` micro-batches whose loss is divided by the number of targets of the
// whole step. Masters, gradients and optimizer state are float32; activations and products have the
// dtype of the recipe. A run that is killed at any moment and started again continues from its
// newest whole checkpoint and ends with the same bits (weights, optimizer, metrics, data order).
//
// Ranks train one model together: each reads its slice of the rows of every micro-batch, and all
// take the same step. Rank 0 writes the run folder, which all of them see. Dropout masks, `batch`
// potentials of Focus and the balance loss are of a rank's own rows; losses agree otherwise.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/data/corpus.h"
#include "fovea/nn/transformer.h"
#include "fovea/report/step_profile.h"
#include "fovea/runtime/communicator.h"
#include "fovea/train/evaluation.h"
#include "fovea/train/recipe.h"

namespace fovea {

/// Where a run stands, after each step.
struct TrainProgress {
  int64_t step = 0;     ///< steps done
  int64_t steps = 0;    ///< of the whole run; 0 with a time budget
  double fraction = 0;  ///< of the budget, 0 ... 1
  int64_t tokens = 0;   ///< inputs seen, by all ranks
  double seconds = 0;   ///< of training, over all processes
  double seconds_left = 0;
  double loss = 0;  ///< of this step, nats per token
  double learning_rate = 0;
  double gradient_norm = 0;
  double tokens_per_second = 0;
  std::string_view stage;
};

/// Steps of a profile, and steps before it that it leaves out.
inline constexpr int64_t kProfileSteps = 10, kProfileWarmup = 5;

struct TrainCallbacks {
  CorpusProgressCallback data;
  std::function<void(const TrainProgress&)> step;
  /// While an evaluation runs: batches done, and all of them.
  std::function<void(int64_t done, int64_t total)> evaluating;
  std::function<void(int64_t step, const EvaluationResult&)> evaluation;
  /// Sentences for people: where it goes on, which stage begins.
  std::function<void(std::string_view)> message;
  /// Warnings for people who want no progress, too: a fallback to an older checkpoint, a skipped
  /// step, groups that collapse. Goes to `message` where this is not set.
  std::function<void(std::string_view)> warning;
  /// Where it is set, kProfileSteps steps are timed by operator (runtime/operator_profile.h),
  /// behind kProfileWarmup steps of this process. Called once, on rank 0: after them, or at the end
  /// of a run that has fewer.
  std::function<void(const StepProfile&)> profile;
  /// Named points inside a step and a checkpoint; for tests that kill the process there.
  std::function<void(std::string_view point, int64_t step)> trace;
  /// Set by a signal handler (runtime/interrupt.h): the trainer saves a checkpoint after the step
  /// and throws Interrupted.
  const std::atomic<bool>* stop = nullptr;
};

struct TrainResult {
  int64_t steps = 0;
  int64_t tokens = 0;
  double seconds = 0;            ///< of training, over all processes
  double tokens_per_second = 0;  ///< tokens / seconds
  double loss = 0;               ///< of the last step, nats per token
  EvaluationResult evaluation;   ///< after the last step
  int64_t parameters = 0;
  /// Peak of the process since the trainer was made (CPU), or of the device.
  int64_t peak_memory_bytes = 0;
  std::string attention_path;
  std::string dtype;
  int64_t skipped_steps = 0;         ///< nan_policy: skip
  std::filesystem::path checkpoint;  ///< the last one: a model folder
};

class Trainer {
 public:
  /// Locks the run folder, prepares data, model and optimizer, and restores the newest whole
  /// checkpoint as `train.resume` says. `corpus` may be given where many runs share one; it must be
  /// prepared from the same data config. `ranks` must outlive the trainer. ConfigError, InputError,
  /// CheckpointError, LockedError, IoError, MemoryError.
  explicit Trainer(const Recipe& recipe, TrainCallbacks callbacks = {},
                   std::shared_ptr<const Corpus> corpus = nullptr, Communicator& ranks = alone());
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Trains to the end of the budget. A run that is finished already returns its stored result at
  /// once. NumericalError, Interrupted, MemoryError, IoError; a checkpoint that was written stays.
  TrainResult run();

  Transformer& model();
  const Corpus& corpus() const;
  const Recipe& recipe() const;
  /// Steps done (of the checkpoint that was restored, before run()).
  int64_t step() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fovea
