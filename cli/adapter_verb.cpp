// fovea adapter: what was added to a model, between runs, model folders and PEFT.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "cli/options.h"
#include "cli/verbs.h"
#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/paths.h"
#include "fovea/checkpoint/adapter.h"
#include "fovea/checkpoint/run_folder.h"
#include "fovea/nn/lora.h"

namespace fovea::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct AdapterVerbOptions {
  std::string model, adapter, out, base;
};

void require_new(const std::string& out) {
  require<InputError>(!path_exists(out), out,
                      "expected a folder that is not there yet; remove it, or give another name");
}

// The base that a checkpoint's recipe names, "" elsewhere.
std::string base_of_run(const fs::path& folder) {
  if (!path_exists(folder / "state.json")) return "";
  const Json state = Json::parse(read_file(folder / "state.json"), nullptr, false);
  const auto pointer = "/state/recipe/train/init_from"_json_pointer;
  return state.is_object() && state.contains(pointer) && state[pointer].is_string()
             ? state[pointer].get<std::string>()
             : "";
}

void report(const AdapterVerbOptions& options, const Globals& globals, const char* what,
            const ModelConfig& config, const Adapter& adapter) {
  const LoraSettings& settings = adapter.settings;
  const size_t modules = lora_places(settings, config).size();
  int64_t parameters = 0;
  for (const auto& [name, tensor] : adapter.tensors) parameters += tensor.numel();
  if (globals.json) {
    Json json{{"folder", options.out},
              {"modules", modules},
              {"parameters", parameters},
              {"attention", adapter.attention.has_value()}};
    if (settings.active()) {
      json["rank"] = settings.rank;
      json["targets"] = settings.targets;
    }
    print(json.dump(2) + "\n");
    return;
  }
  std::string holds = adapter.attention ? "attention mechanisms" : "";
  if (settings.active())
    holds += fmt::format("{}{} modules ({}), rank {}", holds.empty() ? "" : ", ", modules,
                         fmt::join(settings.targets, ", "), settings.rank);
  print(fmt::format("{}: {}, {}, {} parameters\n", options.out, what, holds, parameters));
}

void write(const AdapterVerbOptions& options, const Globals& globals) {
  require_new(options.out);
  const fs::path from = find_model(options.model);
  const LoadedModel loaded = load_model(from);
  const std::string base = options.base.empty() ? base_of_run(from) : options.base;
  std::optional<ModelConfig> config;  // of the base, where it is on this machine
  if (path_exists(base)) config = load_model_config(find_model(base));
  Adapter adapter = adapter_of(loaded.model, config ? &*config : nullptr);
  adapter.base_name = base;
  write_folder(options.out,
               [&](const fs::path& folder) { write_adapter(folder, loaded.config, adapter); });
  report(options, globals, "an adapter folder", loaded.config, adapter);
}

void merge_or_unmerge(const AdapterVerbOptions& options, const Globals& globals, bool unmerge) {
  require_new(options.out);
  const LoadedModel base = load_model(find_model(options.model));
  const Adapter adapter = read_adapter(options.adapter, base.config);
  const Transformer model =
      unmerge ? unmerge_adapter(base.model, adapter) : with_adapter(base.model, adapter);
  write_folder(options.out,
               [&](const fs::path& folder) { save_model(folder, model, *base.tokenizer); });
  report(options, globals, unmerge ? "the base taken apart from its adapter" : "base and adapter",
         base.config, adapter);
}

}  // namespace

Verb add_adapter_verb(Command& app, Globals& globals) {
  auto options = std::make_shared<AdapterVerbOptions>();
  Command* verb = app.add_subcommand(
      "adapter", "adapters (LoRA, attention): to and from folders, out of merged weights");
  verb->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, const char* model_help) {
    Command* sub = verb->add_subcommand(name, help);
    sub->add_option("model", options->model, model_help)->required();
    add_global_options(*sub, globals);
    return sub;
  };
  Command* written = add("export", "write the adapter of a run as a PEFT folder",
                         "run folder, checkpoint or model folder with an adapter");
  written->add_option("out", options->out, "the folder to write; must not exist")->required();
  written->add_option("--base", options->base,
                      "base_model_name_or_path; without it what the run began from");
  Command* read = add("import", "write a model folder of a base with a PEFT adapter on it",
                      "the base: run folder, checkpoint or model folder");
  Command* unmerged = add("unmerge", "subtract a PEFT adapter from the weights it was merged into",
                          "the merged model: run folder, checkpoint or model folder");
  for (Command* sub : {read, unmerged}) {
    sub->add_option("adapter", options->adapter, "the PEFT folder")->required();
    sub->add_option("out", options->out, "the folder to write; must not exist")->required();
  }
  verb->footer(
      "\n`fovea export MODEL OUT --merge` puts an adapter into the weights; eval, generate and "
      "chat take\n--adapter FOLDER.\n");
  return {verb, [=, &globals] {
            if (written->parsed()) return write(*options, globals);
            merge_or_unmerge(*options, globals, unmerged->parsed());
          }};
}

}  // namespace fovea::cli
