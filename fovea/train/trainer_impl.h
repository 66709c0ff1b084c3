// Internals of the trainer: the state of a run. Private to fovea/train.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "fovea/base/files.h"
#include "fovea/checkpoint/run_folder.h"
#include "fovea/data/loader.h"
#include "fovea/runtime/reading.h"
#include "fovea/train/gradient_buckets.h"
#include "fovea/train/optimizer.h"
#include "fovea/train/profiled_steps.h"
#include "fovea/train/run_record.h"
#include "fovea/train/sharded_layers.h"
#include "fovea/train/slow_ranks.h"
#include "fovea/train/stage_schedule.h"
#include "fovea/train/trainer.h"

namespace fovea {

/// Everything about a run that its checkpoint must remember beside weights, optimizer and loader.
struct RunState {
  int64_t step = 0;
  size_t stage = 0;
  int64_t tokens = 0;
  double seconds = 0;  // of training
  int64_t skipped_steps = 0;
  int64_t skipped_in_a_row = 0;
  double loss = 0;  // of the last step
  int64_t peak_memory_bytes = 0;
  std::string attention_path;
  int64_t evaluated_step = -1;
  std::optional<EvaluationResult> evaluation;

  nlohmann::ordered_json to_json() const;
  /// CheckpointError where a key is missing or of another type.
  static RunState from_json(const nlohmann::ordered_json& json);
};

/// Measures of one optimizer step.
struct StepOutcome {
  double loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
  double seconds = 0;
  double load_seconds = 0;
  int64_t tokens = 0;
  Reading ln_z_sums;   // of this rank; undefined where the objective has none
  double targets = 1;  // of all ranks
  ForwardInfo info;
};

/// The parts of one step's loss; sums of this rank may still be on the device.
struct StepSums {
  Reading nll, ln_z;
  double normaliser = 1;
};

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

struct Trainer::Impl {
  Impl(const Recipe& unresolved, TrainCallbacks calls, std::shared_ptr<const Corpus> given,
       Communicator& communicator);

  Recipe recipe;  // resolved, dtype and device chosen
  TrainCallbacks callbacks;
  Communicator& ranks;
  at::Device device = at::kCPU;
  RunPaths paths;
  std::optional<FolderLock> lock;  // rank 0, as the record
  std::shared_ptr<const Corpus> corpus;
  std::vector<StageSchedule> stages;
  std::unique_ptr<Transformer> model;
  std::unique_ptr<ShardedLayers> layers;  // of `train.shard: all` on several ranks
  std::unique_ptr<AdamW> optimizer;
  std::unique_ptr<GradientBuckets> gradients;
  SlowRanks slow_ranks;
  std::unique_ptr<Loader> loader;
  std::vector<ValidationSet> validation;
  std::optional<RunRecord> record;
  RunState state;
  int64_t saved_step = -1;  // of the newest checkpoint
  // Since the last line of metrics.jsonl.
  int64_t window_tokens = 0;
  double window_seconds = 0;
  double recent_step_seconds = 0;
  std::optional<ProfiledSteps> profile;  // of callbacks.profile, on rank 0

  // trainer.cpp: setting up and the loop
  void set_up(const std::optional<FoundCheckpoint>& found);
  TrainResult run();
  const StageSchedule& stage() const { return stages[state.stage]; }
  bool finished() const;
  /// Whether the step of that number writes a line of metrics.jsonl whatever else happens.
  bool logs(int64_t step) const;
  void after_step(const StepOutcome& outcome);
  void report_progress(const StepOutcome& outcome);
  /// Mean and root mean square of ln Z over the targets of all ranks.
  std::optional<LnZ> ln_z_of(const StepOutcome& outcome);
  TrainResult result() const;

  // trainer_stage.cpp: what changes between stages
  void build_model();
  bool shards_layers() const { return recipe.train.shard == Shard::all && ranks.size() > 1; }
  /// The names of added parameters that the files lack, which are drawn.
  std::vector<std::string> read_weights(const std::filesystem::path& folder);
  void enter_stage(bool first);
  void build_loader();
  void build_validation();

  // trainer_step.cpp
  StepOutcome train_step();
  Reading gradient_norm() const;
  void update(const StepOutcome& outcome);
  void calibrate(const std::vector<Batch>& batches);
  StepSums accumulate_gradients(const std::vector<Batch>& batches, std::vector<ForwardInfo>& infos);
  void evaluate_model();
  void refuse_update(const StepOutcome& outcome);

  // trainer_profile.cpp
  /// train_step(), timed by operator where that is asked for.
  StepOutcome profiled_step();
  void tell_profile();

  // trainer_checkpoint.cpp
  std::optional<FoundCheckpoint> find_start();
  std::optional<FoundCheckpoint> find_newest() const;
  std::shared_ptr<const Corpus> read_corpus(const std::shared_ptr<const Tokenizer>& tokenizer);
  bool stop_requested() const;
  void check_same_run(const FoundCheckpoint& found) const;
  void check_same_corpus(const FoundCheckpoint& found) const;
  void restore(const FoundCheckpoint& found);
  void save();
  void write_checkpoint(const TensorMap& moments, SavedParts& parts);
  void write_run_files() const;

  void message(std::string_view text) const {
    if (ranks.is_first() && callbacks.message) callbacks.message(text);
  }
  void warn(std::string_view text) const {
    if (ranks.is_first() && callbacks.warning) return callbacks.warning(text);
    message(text);
  }
  void trace(std::string_view point) const {
    if (callbacks.trace) callbacks.trace(point, state.step);
  }
};

/// Rethrows torch's and the allocator's out-of-memory errors as MemoryError with the size asked for
/// and what to lower.
[[noreturn]] void rethrow_with_memory_advice(const Recipe& recipe);

}  // namespace fovea
