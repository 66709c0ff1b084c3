// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/run_folder.h"

#include <algorithm>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/paths.h"
#include "fovea/checkpoint/model_file.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kDigits = 10;

/// The system's refusals as IoError, like those of base/files.h.
void move_folder(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  require<IoError>(!error, "file",
                   "cannot rename '{}' to '{}': {}; check the disk and its permissions",
                   from.string(), to.string(), error.message());
}

void remove_folder(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  require<IoError>(!error, "file", "cannot remove '{}': {}; check the disk and its permissions",
                   folder.string(), error.message());
}

}  // namespace

fs::path RunPaths::checkpoint(int64_t step) const {
  return checkpoints() / fmt::format("{:0{}}", step, kDigits);
}

std::vector<CheckpointEntry> list_checkpoints(const fs::path& run_folder) {
  std::vector<CheckpointEntry> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(RunPaths{run_folder}.checkpoints(), error)) {
    const std::optional<int64_t> step = step_of_name(entry.path().filename().string());
    if (step) out.push_back({*step, entry.path()});
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return out;
}

fs::path save_checkpoint(const fs::path& run_folder, int64_t step, const Json& state,
                         const std::function<void(const fs::path&)>& fill,
                         const std::function<void(std::string_view)>& trace) {
  const auto at = [&](std::string_view point) {
    if (trace) trace(point);
  };
  const fs::path target = RunPaths{run_folder}.checkpoint(step);
  make_folders(target.parent_path());
  write_folder(target, [&](const fs::path& folder) {
    at("checkpoint_begun");
    fill(folder);
    at("checkpoint_filled");
    write_checkpoint_state(folder, step, state);
    at("checkpoint_ready");
    remove_folder(target);  // a damaged one of the same step
  });
  at("checkpoint_written");
  return target;
}

Json load_checkpoint_state(const fs::path& checkpoint, const WarningSink& warn) {
  CheckpointState read = read_checkpoint_state(checkpoint, warn);
  for (const auto& [name, expected] : read.files.items()) {
    check_listed_file(checkpoint, name, expected);
  }
  return std::move(read.state);
}

std::vector<std::string> checkpoint_damage(const fs::path& checkpoint, const WarningSink& warn) {
  std::vector<std::string> damage;
  CheckpointState read;
  try {
    read = read_checkpoint_state(checkpoint, warn);
  } catch (const CheckpointError& error) {
    damage.emplace_back(error.what());
  }
  for (const auto& [name, expected] : read.files.items()) {
    try {
      check_listed_file(checkpoint, name, expected);
    } catch (const CheckpointError& error) {
      damage.emplace_back(error.what());
    }
  }
  return damage;
}

void FoundCheckpoint::report(const WarningSink& warn) const {
  if (!warn) return;
  for (const std::string& sentence : damaged) {
    warn(fmt::format("{}; falling back to the checkpoint of step {}", sentence, checkpoint.step));
  }
}

std::optional<FoundCheckpoint> find_valid_checkpoint(
    const fs::path& run_folder, const std::function<void(const FoundCheckpoint&)>& check,
    const WarningSink& warn) {
  std::vector<CheckpointEntry> entries = list_checkpoints(run_folder);
  if (entries.empty()) return std::nullopt;
  FoundCheckpoint found;
  while (!entries.empty()) {
    found.checkpoint = std::move(entries.back());
    entries.pop_back();
    try {
      found.state = load_checkpoint_state(found.checkpoint.folder, warn);
      if (check) check(found);
      return found;
    } catch (const CheckpointError& error) {
      found.damaged.emplace_back(error.what());
    }
  }
  fail<CheckpointError>(
      run_folder.string(),
      "no checkpoint of this run is whole ({}); restore one from a backup, or delete "
      "the folder 'checkpoints' to begin again",
      fmt::join(found.damaged, "; "));
}

void prune_checkpoints(const fs::path& run_folder, int64_t keep) {
  const RunPaths paths{run_folder};
  const std::vector<CheckpointEntry> entries = list_checkpoints(run_folder);
  const auto count = static_cast<int64_t>(entries.size());
  for (int64_t i = 0; i < count - std::max<int64_t>(keep, 1); ++i) {
    // Renamed first, so that no half of it is ever taken for a checkpoint.
    const fs::path& folder = entries[static_cast<size_t>(i)].folder;
    move_folder(folder, folder.parent_path() / (".old-" + folder.filename().string()));
  }
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(paths.checkpoints(), error)) {
    std::error_code ignored;  // what cannot be removed now is tried again next time
    if (entry.path().filename().string().starts_with(".")) fs::remove_all(entry.path(), ignored);
  }
}

void set_aside_newer_checkpoints(const fs::path& run_folder, int64_t step) {
  for (const CheckpointEntry& entry : list_checkpoints(run_folder)) {
    if (entry.step <= step) continue;
    fs::path aside = entry.folder;
    aside += ".damaged";
    remove_folder(aside);  // of an earlier accident at the same step
    move_folder(entry.folder, aside);
  }
}

namespace {

/// The files that only a checkpoint has: one that lost its state.json is still none to trust.
bool is_checkpoint(const fs::path& folder) {
  return path_exists(folder / kStateFile) || path_exists(folder / "optimizer.safetensors");
}

}  // namespace

fs::path resolve_model_folder(const fs::path& path, const WarningSink& warn) {
  if (is_file(path) && find_model_file(path)) return path;
  if (!is_folder(path)) {
    fail<CheckpointError>(
        path.string(),
        "expected a run folder, a checkpoint, a model folder, or a .gguf or .bin file; "
        "there is no such folder or file");
  }
  if (is_checkpoint(path)) {
    load_checkpoint_state(path, warn);
    return path;
  }
  if (path_exists(path / "config.json")) return path;
  if (const auto found = find_valid_checkpoint(path, {}, warn)) {
    found->report(warn);
    return found->checkpoint.folder;
  }
  if (const auto file = find_model_file(path)) return *file;
  if (path_exists(path / "config.yaml")) {
    fail<CheckpointError>(path.string(), "this run has no checkpoint yet; train it first");
  }
  fail<CheckpointError>(path.string(),
                        "expected a run folder (with checkpoints/) or a model folder (config.json, "
                        "model.safetensors, tokenizer.json) or one .gguf file; the folder has "
                        "none");
}

}  // namespace fovea
