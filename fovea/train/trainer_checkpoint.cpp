// Where a run begins, and how it is saved.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "fovea/base/error.h"
#include "fovea/checkpoint/weights_elsewhere.h"
#include "fovea/config/reader.h"
#include "fovea/runtime/machine.h"
#include "fovea/text/result_json.h"
#include "fovea/train/trainer_impl.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kOptimizer = "optimizer.safetensors";

/// CheckpointError where a run cannot go on from this state: a value is missing, of another type,
/// or contradicts the folder.
void check_state(const FoundCheckpoint& found) {
  const std::string where = found.checkpoint.folder.string();
  try {
    const RunState run = RunState::from_json(found.state.at("run"));
    require<CheckpointError>(run.step == found.checkpoint.step, where,
                             "the state of the run must be of step {}; got {}",
                             found.checkpoint.step, run.step);
    LoaderState::from_json(found.state.at("loader"));
    found.state.at("corpus").at("fingerprint").get<std::string>();
    require<CheckpointError>(found.state.at("recipe").is_object(), where,
                             "the recipe in state.json is damaged");
  } catch (const Json::exception& error) {
    fail<CheckpointError>(where, "the state in state.json is damaged: {}", error.what());
  }
}

}  // namespace

template <class V>
void describe(V& v, RunState& s) {
  v("step", s.step);
  v("stage", s.stage);
  v("tokens", s.tokens);
  v("seconds", s.seconds);
  v("skipped_steps", s.skipped_steps);
  v("skipped_in_a_row", s.skipped_in_a_row);
  v("loss", s.loss);
  v("peak_memory_bytes", s.peak_memory_bytes);
  v("attention_path", s.attention_path);
  v("evaluated_step", s.evaluated_step);
  v("evaluation", s.evaluation);
}

Json RunState::to_json() const { return described_json(*this); }

RunState RunState::from_json(const Json& json) {
  RunState state;
  read_result<CheckpointError>(json, "state.json", state);
  const bool counts = state.step >= 0 && state.tokens >= 0 && state.seconds >= 0.0 &&
                      state.skipped_steps >= 0 && state.skipped_in_a_row >= 0 &&
                      state.evaluated_step <= state.step;
  require<CheckpointError>(counts, "state.json", "expected counts of a run; got {}", json.dump());
  return state;
}

std::optional<FoundCheckpoint> Trainer::Impl::find_start() {
  std::optional<FoundCheckpoint> found = ranks.is_first() ? find_newest() : std::nullopt;
  const auto step =
      static_cast<int64_t>(ranks.max(found ? static_cast<double>(found->checkpoint.step) : -1.0));
  if (ranks.is_first() || step < 0) return found;
  found = find_valid_checkpoint(paths.folder, [&](const FoundCheckpoint& other) {
    require<CheckpointError>(other.checkpoint.step == step, other.checkpoint.folder.string(),
                             "expected step {}, from which rank 0 goes on; got {}", step,
                             other.checkpoint.step);
  });
  require<CheckpointError>(found.has_value(), paths.folder.string(),
                           "expected the checkpoint of step {}, which rank 0 sees; got none: all "
                           "machines need the same 'run_folder', on a shared file system",
                           step);
  return found;
}

std::optional<FoundCheckpoint> Trainer::Impl::find_newest() const {
  const ResumePolicy policy = recipe.train.resume;
  const bool any = !list_checkpoints(paths.folder).empty();
  if (policy == ResumePolicy::never && any) {
    fail<ConfigError>(
        "recipe",
        "'train.resume' is never, but '{}' holds the checkpoints of a run; choose another "
        "'run_folder', delete that one, or set resume: auto",
        paths.folder.string());
  }
  if (policy == ResumePolicy::must && !any) {
    fail<ConfigError>(
        "recipe",
        "'train.resume' is must, but '{}' holds no checkpoint; check 'run_folder', or set "
        "resume: auto",
        paths.folder.string());
  }
  const WarningSink sink = [&](std::string_view text) { warn(text); };
  std::optional<FoundCheckpoint> found = find_valid_checkpoint(paths.folder, check_state, sink);
  if (found) found->report(sink);
  return found;
}

void Trainer::Impl::check_same_run(const FoundCheckpoint& found) const {
  const auto differences = recipe_differences(found.state["recipe"], fields_to_json(recipe));
  if (differences.empty()) return;
  fail<ConfigError>(
      "recipe",
      "'{}' holds a run of another recipe ({}); give it another 'run_folder' or 'name', take the "
      "values back, or begin from its weights with 'train.init_from'",
      paths.folder.string(), fmt::join(differences, "; "));
}

void Trainer::Impl::check_same_corpus(const FoundCheckpoint& found) const {
  const Json& before = found.state["corpus"];
  const std::string was = before["fingerprint"].get<std::string>();
  if (was == corpus->fingerprint()) return;
  const auto names = [](const Json& summary) {
    std::vector<std::string> out;
    for (const Json& source : summary.value("sources", Json::array())) {
      const Json name = source.is_object() ? source.value("name", Json()) : Json();
      out.push_back(name.is_string() ? name.get<std::string>() : name.dump());
    }
    return fmt::format("{}", fmt::join(out, ", "));
  };
  fail<ConfigError>("recipe",
                    "'{}' holds a run on another corpus: fingerprint {} ({}), now {} ({}); the "
                    "text, its weights or "
                    "its split ('data.*') changed. Take the old data back, or give this run "
                    "another 'run_folder' and "
                    "'train.init_from'",
                    paths.folder.string(), was, names(before), corpus->fingerprint(),
                    names(corpus->summary()));
}

void Trainer::Impl::restore(const FoundCheckpoint& found) {
  const std::vector<std::string> missing = read_weights(found.checkpoint.folder);
  if (!missing.empty()) {
    fail<CheckpointError>(found.checkpoint.folder.string(), "missing tensors: {}",
                          fmt::join(missing, ", "));
  }
  optimizer->load_state(SafetensorsFile(found.checkpoint.folder / kOptimizer));
  loader->restore(LoaderState::from_json(found.state["loader"]));
  if (ranks.is_first()) set_aside_newer_checkpoints(paths.folder, found.checkpoint.step);
}

void Trainer::Impl::save() {
  SavedParts parts(ranks);
  const TensorMap moments = optimizer->state(&parts);
  if (layers) layers->add_to(parts);
  if (ranks.is_first()) {
    write_checkpoint(moments, parts);
    parts.end();
  } else {
    parts.serve();
  }
  ranks.barrier();
  saved_step = state.step;
}

void Trainer::Impl::write_checkpoint(const TensorMap& moments, SavedParts& parts) {
  record->sync();
  state.peak_memory_bytes = std::max(state.peak_memory_bytes, peak_memory_bytes(device));
  const Json json = {{"run", state.to_json()},
                     {"loader", loader->state().to_json()},
                     {"corpus", corpus->summary()},
                     {"recipe", fields_to_json(recipe)}};
  const auto fetch = [&](const std::string& name, const at::Tensor& given) {
    return parts.fetch(name, given);
  };
  const auto fill = [&](const std::filesystem::path& folder) {
    save_fetched_model(folder, *model, corpus->tokenizer(), fetch);
    trace("checkpoint_model");
    write_fetched(folder / kOptimizer, moments, {}, fetch);
  };
  save_checkpoint(paths.folder, state.step, json, fill,
                  [&](std::string_view point) { trace(point); });
  prune_checkpoints(paths.folder, recipe.train.keep_checkpoints);
  trace("checkpoint_pruned");
}

void Trainer::Impl::write_run_files() const {
  write_file(paths.config(), fields_to_yaml(recipe, /*with_help=*/false));
  Json info = machine_summary(device);
  info["dtype"] = enum_name(recipe.train.dtype);
  info["seed"] = recipe.train.seed;
  info["parameters"] = model->parameters().count();
  info["data"] = corpus->summary();
  write_file(paths.info(), info.dump(2) + "\n");
}

}  // namespace fovea
