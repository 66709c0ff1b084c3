// The phases of a retrofit as recipes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "fovea/base/error.h"
#include "fovea/config/reader.h"
#include "fovea/retrofit/differential_start.h"
#include "fovea/retrofit/retrofit.h"

namespace fovea {
namespace {

// Parts of the minutes that the phases take.
constexpr double kGroupsPart = 3.0, kDistillPart = 2.0, kAdaptPart = 2.0, kFinetunePart = 2.0;
// Below this the groups see too few windows to balance, and nothing is worth its table.
constexpr double kLeastMinutes = 1.0;
// By the language-model loss groups are soft in the first half of their phase, then hard, as they
// will be used (recipes/retrofit/focus-losses.yaml).
constexpr double kHardFrom = 0.5;
// Of the validation parts, scored at the end of a phase; the table has a text and a size of its
// own.
constexpr int64_t kEvaluationRows = 8;

// The model that the first phase begins from.
struct Beginning {
  std::string model;
  ModelConfig config;
};

Recipe common_recipe(const RetrofitOptions& options, const Beginning& base) {
  const ModelConfig& config = base.config;
  Recipe recipe;
  recipe.tokenizer = options.model;
  recipe.model = config;
  recipe.train.init_from = base.model;
  for (const std::string& path : options.texts) {
    DataSource source;
    source.path = path;
    recipe.data.sources.push_back(std::move(source));
  }
  TrainConfig& train = recipe.train;
  train.sequence_length = std::min(options.length, config.context);
  train.batch_rows = 1;
  train.optimizer.weight_decay = 0.0;
  train.schedule = {.warmup_fraction = 0.05, .final_ratio = 0.05};
  // Of all sources together; each has a row at least.
  const auto sources = static_cast<int64_t>(options.texts.size());
  train.evaluation_tokens =
      train.sequence_length * std::max<int64_t>(1, kEvaluationRows / std::max<int64_t>(1, sources));
  train.checkpoint_interval = 50;
  train.keep_checkpoints = 1;
  train.seed = options.seed;
  return recipe;
}

void set_budget(const RetrofitOptions& options, double share, TrainConfig& train) {
  if (options.steps > 0) {
    train.steps = options.steps;
  } else {
    train.seconds = 60.0 * options.minutes * share;
  }
}

/// Refuses the keys that the options of the verb set.
Recipe with_overrides(const Recipe& recipe, const std::vector<std::string>& overrides) {
  ConfigNode root = parse_yaml(fields_to_yaml(recipe), "retrofit");
  for (const std::string& assignment : overrides) set_override(root, assignment);
  Recipe changed = recipe_from_node(root);
  const auto refuse = [](bool is_changed, const char* key, const char* instead) {
    require<ConfigError>(!is_changed, "retrofit", "'{}' is no override: {} sets it", key, instead);
  };
  refuse(changed.run_folder != recipe.run_folder, "run_folder", "--out");
  refuse(changed.tokenizer != recipe.tokenizer, "tokenizer", "the model");
  refuse(changed.train.init_from != recipe.train.init_from, "train.init_from", "the model");
  return changed;
}

/// Puts Focus on; local pairs are at most half of a row, or the groups would see no pair.
void apply_groups(const RetrofitKind& focus, Recipe& recipe) {
  focus.apply(recipe.model);
  int64_t& window = recipe.model.attention.spec.focus.window;
  window = std::min(window, std::max<int64_t>(1, recipe.train.sequence_length / 2));
}

void check_window(const Recipe& recipe) {
  const FocusSpec& focus = recipe.model.attention.spec.focus;
  require<ConfigError>(focus.window + focus.sinks < recipe.train.sequence_length, "retrofit",
                       "expected rows longer than focus.window + focus.sinks = {}, or no pair is "
                       "left to the groups; got {} tokens: raise --length, or give "
                       "model.attention.focus.window={}",
                       focus.window + focus.sinks, recipe.train.sequence_length,
                       std::max<int64_t>(1, recipe.train.sequence_length / 2));
}

std::string groups_help(const std::string& objective) {
  const char* by = "the language-model loss, first soft, then hard";
  if (objective == "kept_mass") by = "the mass of attention that they keep";
  if (objective == "distillation") by = "the full model's predictions, hard";
  return fmt::format("groups of Focus by {}; the base is frozen", by);
}

RetrofitPhase groups_phase(const RetrofitOptions& options, const Beginning& base,
                           const RetrofitKind& focus, double share) {
  Recipe recipe = common_recipe(options, base);
  apply_groups(focus, recipe);
  recipe.name = "groups";
  recipe.train.trainable = focus.trainable;
  recipe.train.objective = options.objective;
  if (options.objective == "lm") recipe.train.straight_through_from = kHardFrom;
  recipe.train.optimizer.learning_rate = focus.learning_rate;
  set_budget(options, share, recipe.train);
  recipe = with_overrides(recipe, options.overrides);
  check_window(recipe);
  std::string help = groups_help(recipe.train.objective);
  return {.name = "groups", .help = std::move(help), .recipe = std::move(recipe)};
}

RetrofitPhase distill_phase(const RetrofitOptions& options, const RetrofitPhase& groups,
                            double share) {
  RetrofitPhase phase = groups;
  phase.name = phase.recipe.name = "distill";
  phase.recipe.train.init_from = groups.recipe.run_folder;
  phase.recipe.train.objective = "distillation";
  phase.help = groups_help(phase.recipe.train.objective);
  phase.recipe.train.seconds = 0.0;
  set_budget(options, share, phase.recipe.train);
  return phase;
}

RetrofitPhase adapt_phase(const RetrofitOptions& options, const Beginning& base,
                          const std::vector<const RetrofitKind*>& kinds,
                          const RetrofitPhase* before, double share) {
  Recipe recipe = common_recipe(options, base);
  std::vector<std::string> learning;
  double rate = 1.0;
  for (const RetrofitKind* kind : kinds) {
    if (kind->groups_first) {
      apply_groups(*kind, recipe);
      continue;
    }
    kind->apply(recipe.model);
    learning.emplace_back(kind->trainable);
    rate = std::min(rate, kind->learning_rate);
  }
  recipe.name = "adapt";
  if (before) recipe.train.init_from = before->recipe.run_folder;
  recipe.train.trainable = fmt::format("{}", fmt::join(learning, "+"));
  recipe.train.optimizer.learning_rate = rate;
  set_budget(options, share, recipe.train);
  recipe = with_overrides(recipe, options.overrides);
  if (before) recipe.model.attention.spec.focus.gate = FocusSpec::Gate::hard;
  return {.name = "adapt",
          .help = fmt::format("{} by the language-model loss{}", fmt::join(learning, ", "),
                              before ? "; the groups are frozen and hard" : ""),
          .recipe = std::move(recipe)};
}

// All weights, from where the phases before left them; `first` has the gate of the groups.
RetrofitPhase finetune_phase(const RetrofitOptions& options, const RetrofitPhase& first,
                             const RetrofitPhase& before, double share) {
  RetrofitPhase phase = before;
  phase.name = phase.recipe.name = "finetune";
  TrainConfig& train = phase.recipe.train;
  train.init_from = before.recipe.run_folder;
  train.trainable = "all";
  train.objective = "lm";
  train.optimizer.learning_rate = options.finetune_rate;
  FocusSpec& focus = phase.recipe.model.attention.spec.focus;
  if (focus.active()) {  // hard, as it will be used, with the gradient of the soft groups (U-8)
    focus.gate = first.recipe.model.attention.spec.focus.gate;
    train.straight_through_from = 0.0;
  }
  train.steps = 0;
  train.seconds = 0.0;
  set_budget(options, share, train);
  phase.help = fmt::format("all weights by the language-model loss, at a rate of {:g}{}",
                           options.finetune_rate, focus.active() ? "; the groups are hard" : "");
  return phase;
}

bool has_own_start(const std::vector<const RetrofitKind*>& kinds) {
  return std::ranges::any_of(kinds, &RetrofitKind::own_start);
}

}  // namespace

std::string retrofit_beginning(const RetrofitOptions& options, const ModelConfig& config) {
  return has_own_start(chosen_kinds(options.with, config)) ? (options.out / "start").string()
                                                           : options.model;
}

bool retrofit_makes_model(const RetrofitOptions& options, const ModelConfig& config) {
  return options.finetune || has_own_start(chosen_kinds(options.with, config));
}

std::vector<RetrofitPhase> plan_retrofit(const RetrofitOptions& options,
                                         const ModelConfig& config) {
  require<ConfigError>(!options.texts.empty(), "retrofit",
                       "expected a text to train on; got none: give --text FILE");
  require<ConfigError>(!options.out.empty(), "retrofit",
                       "expected a folder for the result; got none: give --out DIR");
  const std::vector<const RetrofitKind*> kinds = chosen_kinds(options.with, config);
  const bool focus = kinds.front()->groups_first, others = kinds.size() > (focus ? 1 : 0);
  require<ConfigError>(focus || !options.distill, "retrofit",
                       "distillation trains the groups of Focus; add focus to --with, or leave "
                       "--distill out");
  require<ConfigError>(focus || options.objective == "lm", "retrofit",
                       "--objective {} trains the groups of Focus; add focus to --with, or leave "
                       "--objective out",
                       options.objective);
  require<ConfigError>(!options.distill || options.objective != "distillation", "retrofit",
                       "--objective distillation trains the groups by distillation already; leave "
                       "--distill out");
  const bool lora = std::ranges::any_of(kinds, [](const auto* k) { return k->name == "lora"; });
  require<ConfigError>(!options.finetune || !lora, "retrofit",
                       "--finetune trains all weights, and lora stands for weights that are "
                       "frozen; leave one of them out");
  const int count =
      (focus ? 1 : 0) + (options.distill ? 1 : 0) + (others ? 1 : 0) + (options.finetune ? 1 : 0);
  require<ConfigError>(options.steps > 0 || options.minutes >= kLeastMinutes * count, "retrofit",
                       "expected at least {:g} minutes for {} phases; got {:g}: nothing would be "
                       "calibrated",
                       kLeastMinutes * count, count, options.minutes);
  const double all = (focus ? kGroupsPart : 0.0) + (options.distill ? kDistillPart : 0.0) +
                     (others ? kAdaptPart : 0.0) + (options.finetune ? kFinetunePart : 0.0);
  std::vector<RetrofitPhase> phases;
  const auto add = [&](RetrofitPhase phase) {
    phase.recipe.run_folder = (options.out / "phases" / phase.name).string();
    phases.push_back(std::move(phase));
  };
  const Beginning base{retrofit_beginning(options, config),
                       has_own_start(kinds) ? differential_config(config) : config};
  if (focus) add(groups_phase(options, base, *kinds.front(), kGroupsPart / all));
  if (options.distill) add(distill_phase(options, phases.back(), kDistillPart / all));
  if (others)
    add(adapt_phase(options, base, kinds, focus ? &phases.back() : nullptr, kAdaptPart / all));
  if (options.finetune)
    add(finetune_phase(options, phases.front(), phases.back(), kFinetunePart / all));
  for (RetrofitPhase& phase : phases) phase.recipe = phase.recipe.resolved();
  return phases;
}

}  // namespace fovea
