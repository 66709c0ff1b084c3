// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/run_folder.h"

#include <algorithm>
#include <fstream>

#include "fovea/base/error.h"
#include "fovea/base/files.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr size_t kDigits = 10;

/// In parts, not through a map: mapped pages would count as memory of the run.
std::string checksum(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string part(1 << 20, '\0');
  uint64_t sum = 0;
  while (file) {
    file.read(part.data(), static_cast<std::streamsize>(part.size()));
    sum = fingerprint(std::string_view(part.data(), static_cast<size_t>(file.gcount())), sum);
  }
  require<IoError>(file.eof() && !file.bad(), "file", "cannot read '{}'; check the disk",
                   path.string());
  return hex64(sum);
}

/// {"model.safetensors": {"bytes", "checksum"}, ...} of all files of a folder, sorted.
Json file_table(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  Json table = Json::object();
  for (const fs::path& file : files) {
    table[file.filename().string()] = {{"bytes", fs::file_size(file)},
                                       {"checksum", checksum(file)}};
  }
  return table;
}

void check_file(const fs::path& folder, const std::string& name, const Json& expected) {
  const fs::path path = folder / name;
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  if (error) fail<CheckpointError>(folder.string(), "the file '{}' is missing", name);
  const auto bytes = expected.at("bytes").get<uintmax_t>();
  if (size != bytes) {
    fail<CheckpointError>(folder.string(), "the file '{}' must have {} bytes; it has {}", name,
                          bytes, size);
  }
  if (checksum(path) != expected.at("checksum").get<std::string>()) {
    fail<CheckpointError>(folder.string(), "the content of '{}' is not what was written", name);
  }
}

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

bool is_step(const std::string& name) {
  return name.size() >= kDigits && name.size() <= 18 &&
         std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

fs::path RunPaths::checkpoint(int64_t step) const {
  return checkpoints() / fmt::format("{:0{}}", step, kDigits);
}

std::vector<CheckpointEntry> list_checkpoints(const fs::path& run_folder) {
  std::vector<CheckpointEntry> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(RunPaths{run_folder}.checkpoints(), error)) {
    const std::string name = entry.path().filename().string();
    if (is_step(name)) out.push_back({std::stoll(name), entry.path()});
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
    const Json whole = {
        {"format", kFormat}, {"step", step}, {"files", file_table(folder)}, {"state", state}};
    write_file(folder / "state.json", whole.dump(2) + "\n");
    at("checkpoint_ready");
    remove_folder(target);  // a damaged one of the same step
  });
  at("checkpoint_written");
  return target;
}

namespace {

/// Reads state.json and hands every file it lists to `visit`; the state.
Json visit_files(const fs::path& checkpoint,
                 const std::function<void(const std::string&, const Json&)>& visit) {
  try {
    const Json whole = Json::parse(read_file(checkpoint / "state.json"));
    if (const int format = whole.at("format").get<int>(); format != kFormat) {
      fail<CheckpointError>(
          checkpoint.string(),
          "state.json must have format {}; got {}: another version of Fovea wrote it", kFormat,
          format);
    }
    for (const auto& [name, expected] : whole.at("files").items()) {
      if (name.find('/') != std::string::npos) {
        fail<CheckpointError>(checkpoint.string(), "'{}' in state.json is no file name", name);
      }
      visit(name, expected);
    }
    return whole.at("state");
  } catch (const InputError&) {
    fail<CheckpointError>(checkpoint.string(), "the file 'state.json' is missing");
  } catch (const Json::exception& error) {
    fail<CheckpointError>(checkpoint.string(), "state.json is damaged: {}", error.what());
  }
}

}  // namespace

Json load_checkpoint_state(const fs::path& checkpoint) {
  return visit_files(checkpoint, [&](const std::string& name, const Json& expected) {
    check_file(checkpoint, name, expected);
  });
}

std::vector<std::string> checkpoint_damage(const fs::path& checkpoint) {
  std::vector<std::string> damage;
  try {
    visit_files(checkpoint, [&](const std::string& name, const Json& expected) {
      try {
        check_file(checkpoint, name, expected);
      } catch (const CheckpointError& error) {
        damage.emplace_back(error.what());
      }
    });
  } catch (const CheckpointError& error) {
    damage.emplace_back(error.what());
  }
  return damage;
}

std::optional<FoundCheckpoint> find_valid_checkpoint(const fs::path& run_folder) {
  std::vector<CheckpointEntry> entries = list_checkpoints(run_folder);
  if (entries.empty()) return std::nullopt;
  FoundCheckpoint found;
  while (!entries.empty()) {
    found.checkpoint = std::move(entries.back());
    entries.pop_back();
    try {
      found.state = load_checkpoint_state(found.checkpoint.folder);
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

fs::path resolve_model_folder(const fs::path& path) {
  if (!fs::is_directory(path)) {
    fail<CheckpointError>(
        path.string(),
        "expected a run folder, a checkpoint or a model folder; there is no such folder");
  }
  if (fs::exists(path / "config.json")) return path;
  if (const auto found = find_valid_checkpoint(path)) return found->checkpoint.folder;
  if (fs::exists(path / "config.yaml")) {
    fail<CheckpointError>(path.string(), "this run has no checkpoint yet; train it first");
  }
  fail<CheckpointError>(path.string(),
                        "expected a run folder (with checkpoints/) or a model folder (config.json, "
                        "model.safetensors, tokenizer.json); the folder has neither");
}

}  // namespace fovea
