// fovea checkpoint: what a run has saved, whether it is whole, the mean of several, and fewer.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/options.h"
#include "cli/verbs.h"
#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/paths.h"
#include "fovea/checkpoint/average.h"
#include "fovea/checkpoint/run_folder.h"
#include "fovea/report/format.h"
#include "fovea/report/table.h"

namespace fovea::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct CheckpointVerbOptions {
  std::string path, out;
  std::vector<std::string> models;
  int64_t last = 5, keep = 1;
};

/// All checkpoints of a run folder, or the one that `path` is.
std::vector<CheckpointEntry> checkpoints_of(const fs::path& path) {
  require<CheckpointError>(is_folder(path), path.string(),
                           "expected a run folder or a checkpoint; there is no such folder");
  if (path_exists(path / "state.json")) return {{.step = -1, .folder = path}};
  std::vector<CheckpointEntry> found = list_checkpoints(path);
  require<CheckpointError>(!found.empty(), path.string(),
                           "expected a run folder with checkpoints, or a checkpoint; got neither");
  return found;
}

int64_t bytes_in(const fs::path& folder) {
  int64_t bytes = 0;
  std::error_code error;  // a link in a circle has no size
  for (const fs::path& path : folder_entries(folder)) {
    const uintmax_t size = fs::file_size(path, error);
    if (!error) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

/// Step, tokens and loss of state.json, without reading the large files; null where it is damaged.
Json summary_of(const CheckpointEntry& entry) {
  Json line{{"step", nullptr}, {"tokens", nullptr}, {"loss", nullptr}};
  const Json whole = Json::parse(
      path_exists(entry.folder / "state.json") ? read_file(entry.folder / "state.json") : "",
      nullptr, false);
  const auto pointer = "/state/run"_json_pointer;
  const Json run = whole.contains(pointer) ? whole[pointer] : Json();
  for (const char* key : {"step", "tokens", "loss"})
    if (run.is_object()) line[key] = run.value(key, Json());
  if (entry.step >= 0) line["step"] = entry.step;
  line["bytes"] = bytes_in(entry.folder);
  line["folder"] = entry.folder.string();
  return line;
}

void list(const CheckpointVerbOptions& options, const Globals& globals) {
  Json lines = Json::array();
  for (const CheckpointEntry& entry : checkpoints_of(options.path))
    lines.push_back(summary_of(entry));
  if (globals.json) {
    print(lines.dump(2) + "\n");
    return;
  }
  TextTable table({{.title = "step", .right = true},
                   {.title = "tokens", .right = true},
                   {.title = "loss", .right = true},
                   {.title = "size", .right = true},
                   {.title = "folder", .shrinks = true}});
  for (const Json& line : lines) {
    const auto number = [&](const char* key) {
      return line[key].is_number() ? line[key].get<double>() : kNotANumber;
    };
    table.add_row({line["step"].dump(), count_text(number("tokens")), fixed_text(number("loss"), 4),
                   bytes_text(number("bytes")), line["folder"].get<std::string>()});
  }
  print(table.render(stdout_width()));
}

void verify(const CheckpointVerbOptions& options, const Globals& globals) {
  Json lines = Json::array();
  std::vector<std::string> all;
  int64_t damaged = 0;
  for (const CheckpointEntry& entry : checkpoints_of(options.path)) {
    const std::vector<std::string> damage = checkpoint_damage(entry.folder, warn);
    all.insert(all.end(), damage.begin(), damage.end());
    damaged += damage.empty() ? 0 : 1;
    lines.push_back(
        {{"folder", entry.folder.string()}, {"whole", damage.empty()}, {"damage", damage}});
    if (!globals.json && damage.empty())
      print(fmt::format("{}: every file is what was written\n", entry.folder.string()));
  }
  if (globals.json) print(lines.dump(2) + "\n");
  require<CheckpointError>(all.empty(), "verify", "{} of {} checkpoints are damaged: {}", damaged,
                           lines.size(), fmt::join(all, "; "));
}

/// Runs stand for their newest checkpoints; what is damaged is not averaged but refused.
std::vector<fs::path> models_to_average(const CheckpointVerbOptions& options) {
  std::vector<fs::path> folders;
  for (const fs::path path : options.models) {
    if (path_exists(path / "config.json")) {
      folders.push_back(path);
      continue;
    }
    const std::vector<CheckpointEntry> found = checkpoints_of(path);
    const size_t count = std::min(found.size(), static_cast<size_t>(options.last));
    for (size_t i = found.size() - count; i < found.size(); ++i) folders.push_back(found[i].folder);
  }
  for (const fs::path& folder : folders) resolve_model_folder(folder, warn);
  return folders;
}

void average(const CheckpointVerbOptions& options, const Globals& globals) {
  const fs::path out = options.out;
  require<InputError>(!path_exists(out), options.out,
                      "expected a folder that is not there yet; remove it, or give another name");
  const std::vector<fs::path> folders = models_to_average(options);
  const LoadedModel mean = average_models(folders);
  write_folder(out,
               [&](const fs::path& folder) { save_model(folder, mean.model, *mean.tokenizer); });
  if (globals.json) {
    std::vector<std::string> names;
    names.reserve(folders.size());
    for (const fs::path& folder : folders) names.push_back(folder.string());
    print(Json{{"folder", out.string()}, {"averaged", names}}.dump(2) + "\n");
    return;
  }
  print(fmt::format("{}: the mean of {} models\n", out.string(), folders.size()));
  for (const fs::path& folder : folders) print(fmt::format("  {}\n", folder.string()));
}

void prune(const CheckpointVerbOptions& options, const Globals& globals) {
  const fs::path run = options.path;
  require<CheckpointError>(is_folder(run / "checkpoints"), options.path,
                           "expected a run folder (with checkpoints/)");
  const FolderLock lock(run);  // not beside a training process
  const std::vector<CheckpointEntry> before = list_checkpoints(run);
  const auto found = find_valid_checkpoint(run);
  const int64_t first_kept =
      static_cast<int64_t>(before.size()) - std::min<int64_t>(options.keep, std::ssize(before));
  require<CheckpointError>(
      !found || found->checkpoint.step >= before[static_cast<size_t>(first_kept)].step,
      options.path,
      "the newest {} checkpoints are damaged and the newest whole one is of step {}: nothing was "
      "removed; keep more, or run `fovea checkpoint verify`",
      options.keep, found ? found->checkpoint.step : 0);
  prune_checkpoints(run, options.keep);
  const std::vector<CheckpointEntry> after = list_checkpoints(run);
  if (globals.json) {
    std::vector<int64_t> kept;
    kept.reserve(after.size());
    for (const CheckpointEntry& entry : after) kept.push_back(entry.step);
    print(Json{{"removed", before.size() - after.size()}, {"kept", kept}}.dump(2) + "\n");
    return;
  }
  print(fmt::format("{}: {} checkpoints removed, {} left\n", options.path,
                    before.size() - after.size(), after.size()));
}

}  // namespace

Verb add_checkpoint_verb(Command& app, Globals& globals) {
  auto options = std::make_shared<CheckpointVerbOptions>();
  Command* verb =
      app.add_subcommand("checkpoint", "list, verify, average and prune what runs have saved");
  verb->require_subcommand(1);
  const auto add = [&](const char* name, const char* help) {
    Command* sub = verb->add_subcommand(name, help);
    add_global_options(*sub, globals);
    return sub;
  };
  Command* listed = add("list", "step, tokens, loss and size of every checkpoint of a run");
  listed->add_option("run", options->path, "run folder or checkpoint")->required();
  Command* verified =
      add("verify", "read every byte and compare checksums; damaged files are named, exit code 2");
  verified->add_option("run", options->path, "run folder or checkpoint")->required();
  Command* averaged = add("average", "write a model folder whose weights are the mean of several");
  averaged
      ->add_option("models", options->models,
                   "checkpoints and model folders; a run folder stands for its newest checkpoints")
      ->required();
  averaged->add_option("--out", options->out, "the folder to write; must not exist")->required();
  averaged->add_option("--last", options->last, "checkpoints of a run folder")
      ->capture_default_str()
      ->check(in_range({1, 1e6}));
  Command* pruned =
      add("prune", "remove the oldest checkpoints of a run, never the last whole one");
  pruned->add_option("run", options->path, "run folder")->required();
  pruned->add_option("--keep", options->keep, "newest checkpoints that stay")
      ->required()
      ->check(in_range({1, 1e6}));
  return {verb, [=, &globals] {
            if (listed->parsed()) return list(*options, globals);
            if (verified->parsed()) return verify(*options, globals);
            if (averaged->parsed()) return average(*options, globals);
            prune(*options, globals);
          }};
}

}  // namespace fovea::cli
