// A run folder: config.yaml, metrics.jsonl, tensorboard/, checkpoints/0000001000/
// (docs/run-folder.md).
//
// A checkpoint is a model folder plus optimizer.safetensors and state.json. It appears as a whole
// (write_folder) and holds the checksums of its files, so that damage is seen before anything is
// restored from it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/checkpoint/checkpoint_state.h"

namespace fovea {

struct CheckpointEntry {
  int64_t step = 0;
  std::filesystem::path folder;
};

/// The result of find_valid_checkpoint().
struct FoundCheckpoint {
  CheckpointEntry checkpoint;
  nlohmann::ordered_json state;      ///< what save_checkpoint() was given
  std::vector<std::string> damaged;  ///< newer checkpoints that were passed over: one sentence each

  /// Says to `warn` which checkpoints were passed over, and for which one.
  void report(const WarningSink& warn) const;
};

/// Paths inside a run folder.
struct RunPaths {
  std::filesystem::path folder;

  std::filesystem::path config() const { return folder / "config.yaml"; }
  std::filesystem::path metrics() const { return folder / "metrics.jsonl"; }
  std::filesystem::path info() const { return folder / "run.json"; }
  std::filesystem::path tensorboard() const { return folder / "tensorboard"; }
  std::filesystem::path checkpoints() const { return folder / "checkpoints"; }
  std::filesystem::path checkpoint(int64_t step) const;
};

/// All checkpoints, oldest first. Empty where there is no such folder.
std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& run_folder);

/// Writes checkpoint `step` atomically: `fill(folder)` writes the files, then state.json is added
/// with `state` and the checksums of all files. An existing checkpoint of that step is replaced.
/// `trace` is called at named points (tests). IoError.
std::filesystem::path save_checkpoint(const std::filesystem::path& run_folder, int64_t step,
                                      const nlohmann::ordered_json& state,
                                      const std::function<void(const std::filesystem::path&)>& fill,
                                      const std::function<void(std::string_view)>& trace = {});

/// The state of a checkpoint after checking every file of it. CheckpointError: missing, truncated
/// or changed file, by name.
nlohmann::ordered_json load_checkpoint_state(const std::filesystem::path& checkpoint,
                                             const WarningSink& warn = {});

/// The damage of a checkpoint, one sentence for each file that is missing, truncated or changed;
/// empty for a whole one.
std::vector<std::string> checkpoint_damage(const std::filesystem::path& checkpoint,
                                           const WarningSink& warn = {});

/// The newest checkpoint that is whole; nothing where there is none at all. CheckpointError where
/// there are some and all are damaged. `check` throws CheckpointError for a state that its reader
/// cannot use: such a checkpoint counts as damaged. `warn` is told what cannot be checked.
std::optional<FoundCheckpoint> find_valid_checkpoint(
    const std::filesystem::path& run_folder,
    const std::function<void(const FoundCheckpoint&)>& check = {}, const WarningSink& warn = {});

/// Deletes the oldest checkpoints but `keep` (>= 1), and the remains of crashed writers. The run
/// folder must be locked.
void prune_checkpoints(const std::filesystem::path& run_folder, int64_t keep);

/// Renames checkpoints newer than `step` to "<step>.damaged", so that nothing takes them for
/// checkpoints and nothing is lost. The run folder must be locked.
void set_aside_newer_checkpoints(const std::filesystem::path& run_folder, int64_t step);

/// The model that a user means by a path. A model folder or .gguf file is the model itself, and so
/// is a folder with one .gguf file and nothing else to load. A checkpoint is taken after checking
/// every file of it. A run folder gives its newest whole checkpoint; `warn` is told of damaged ones
/// that were passed over. CheckpointError otherwise, saying what a model folder holds.
std::filesystem::path resolve_model_folder(const std::filesystem::path& path,
                                           const WarningSink& warn = {});

}  // namespace fovea
