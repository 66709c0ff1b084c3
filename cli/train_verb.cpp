// fovea train: one run from a recipe.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/interruption.h"
#include "cli/options.h"
#include "cli/ranks.h"
#include "fovea/base/error.h"
#include "fovea/config/reader.h"
#include "fovea/report/step_profile.h"
#include "fovea/runtime/machine.h"
#include "fovea/train/trainer.h"

namespace fovea::cli {
namespace {

struct TrainVerbOptions {
  std::string recipe;
  std::vector<std::string> overrides;
  bool print_config = false;
  int64_t processes = 1;
  bool profile = false;
};

nlohmann::ordered_json to_json(const Recipe& recipe, const TrainResult& r,
                               const std::optional<StepProfile>& profile) {
  nlohmann::ordered_json json = {{"run_folder", recipe.run_folder},
                                 {"steps", r.steps},
                                 {"tokens", r.tokens},
                                 {"seconds", r.seconds},
                                 {"tokens_per_second", r.tokens_per_second},
                                 {"loss", r.loss},
                                 {"parameters", r.parameters},
                                 {"peak_memory_bytes", r.peak_memory_bytes},
                                 {"attention_path", r.attention_path},
                                 {"dtype", r.dtype},
                                 {"checkpoint", r.checkpoint.string()},
                                 {"evaluation", r.evaluation.to_json()}};
  if (profile) json["profile"] = to_json(*profile);
  return json;
}

void print_result(const Recipe& recipe, const TrainResult& result,
                  const std::optional<StepProfile>& profile, const Globals& globals) {
  if (globals.json) {
    print(to_json(recipe, result, profile).dump(2) + "\n");
    return;
  }
  const SourceEvaluation total = result.evaluation.total();
  print(fmt::format(
      "{}: {} steps, {:.2f}M tokens in {:.0f} s ({:.0f} tokens/s, {}, {}); {:.2f}M parameters\n",
      recipe.name, result.steps, static_cast<double>(result.tokens) / 1e6, result.seconds,
      result.tokens_per_second, result.dtype, result.attention_path,
      static_cast<double>(result.parameters) / 1e6));
  print(fmt::format("validation: {:.4f} bits per byte, perplexity {:.3f} per token\n",
                    total.bits_per_byte(), total.perplexity()));
  if (const auto& hard = result.evaluation.hard) {
    const EvaluationResult pruned{.sources = hard->sources, .hard = std::nullopt};
    double pairs = 0.0;
    for (const double share : hard->pairs_kept)
      pairs += share / static_cast<double>(hard->pairs_kept.size());
    print(fmt::format(
        "pruned by Focus: {:.4f} bits per byte, perplexity {:.3f} with {:.1f} % of pairs\n",
        pruned.total().bits_per_byte(), pruned.total().perplexity(), 100.0 * pairs));
  }
  if (profile) print(profile_table(*profile, stdout_width()));
  print(fmt::format("model folder: {}\n", result.checkpoint.string()));
}

void run(const TrainVerbOptions& options, const Globals& given) {
  const LoadedRecipe loaded = load_recipe(options.recipe, options.overrides);
  const Recipe recipe = loaded.recipe.resolved();
  if (options.print_config) {
    print(fields_to_yaml(recipe, true));
    return;
  }
  if (options.processes > 1)
    return run_in_processes(options.processes, without_processes(given.arguments));
  const Ranks ranks;
  ranks.require_same(fields_to_json(recipe).dump(), "recipe");
  ranks.compute_on(choose_device(recipe.train.device));
  Globals globals = given;
  globals.quiet = given.quiet || !ranks.all().is_first();
  Progress progress(stderr_progress(globals));
  const InterruptGuard interrupt(ranks.all().is_first() ? say_that_it_stops : nullptr);
  TrainCallbacks callbacks;
  callbacks.stop = interrupt.flag();
  callbacks.message = [&](std::string_view text) { progress.message(text); };
  callbacks.warning = [&](std::string_view text) { progress.warning(text); };
  callbacks.data = [&](const CorpusProgress& p) {
    progress.update({.label = "reading " + p.source,
                     .done = static_cast<double>(p.bytes_done),
                     .total = static_cast<double>(p.bytes)});
  };
  callbacks.step = [&](const TrainProgress& p) {
    progress.update({.label = fmt::format("{} step {}", recipe.name, p.step),
                     .done = p.fraction,
                     .total = 1.0,
                     .loss = p.loss,
                     .tokens_per_second = p.tokens_per_second});
  };
  std::optional<StepProfile> profile;
  if (options.profile) {
    callbacks.profile = [&](const StepProfile& told) {
      profile = told;
      const std::string trouble = save_profile(told, recipe.run_folder);
      if (!trouble.empty()) progress.warning("profile.svg is not drawn: " + trouble);
    };
  }
  ranks.tell(progress);
  Trainer trainer(recipe, callbacks, nullptr, ranks.all());
  const TrainResult result = trainer.run();
  progress.finish();
  if (ranks.all().is_first()) print_result(recipe, result, profile, globals);
}

}  // namespace

Verb add_train_verb(Command& app, Globals& globals) {
  auto options = std::make_shared<TrainVerbOptions>();
  Command* verb = app.add_subcommand(
      "train", "train one model from a recipe; run the same command again to resume");
  verb->add_option("recipe", options->recipe, "YAML file")->required();
  verb->add_option("overrides", options->overrides,
                   "key=value, for example model.layers=8 data.sources.0.path=my.txt");
  verb->add_flag("--print-config", options->print_config,
                 "print the resolved recipe with help for every key, and stop");
  verb->add_option("--processes", options->processes,
                   "train on so many processes of this machine, each with its part of the "
                   "rows; with train.device=cuda each with a GPU, too")
      ->check(in_range({1, 1024}));
  verb->add_flag("--profile", options->profile,
                 "time 10 steps, after 5, by operator: matrix products, attention, norms, ... with "
                 "their FLOPs, as a table, and as profile.json and profile.svg of the run folder");
  add_global_options(*verb, globals);
  verb->footer([] { return recipe_keys_help(); });
  return {.parser = verb, .run = [options, &globals] { run(*options, globals); }, .resumes = true};
}

}  // namespace fovea::cli
