// fovea plan: what a run will cost, and which rules of thumb it breaks, before it runs.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "cli/options.h"
#include "cli/plan_ranks.h"
#include "cli/verbs.h"
#include "fovea/base/error.h"
#include "fovea/checkpoint/model_file.h"
#include "fovea/compare/worker_choice.h"
#include "fovea/report/table.h"
#include "fovea/runtime/machine.h"
#include "fovea/text/tokenizer.h"
#include "fovea/train/run_plan.h"

namespace fovea::cli {
namespace {

struct PlanVerbOptions {
  std::string recipe;
  std::vector<std::string> overrides;
  double speed = 0.0;
  PlanRanksOptions ranks;
};

std::string grouped(int64_t n) {
  std::string digits = std::to_string(n);
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3)
    digits.insert(static_cast<size_t>(i), ",");
  return digits;
}

std::string scaled(double value, std::string_view unit) {
  constexpr std::string_view prefixes[] = {"", "k", "M", "G", "T", "P", "E", "Z", "Y"};
  size_t i = 0;
  while (value >= 1000.0 && i + 1 < std::size(prefixes)) {
    value /= 1000.0;
    ++i;
  }
  return fmt::format("{:.3g} {}{}", value, prefixes[i], unit);
}

std::string duration(double seconds) {
  if (seconds < 120) return fmt::format("{:.0f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.0f} min", seconds / 60);
  if (seconds < 172800) return fmt::format("{:.1f} h", seconds / 3600);
  return fmt::format("{:.1f} days", seconds / 86400);
}

/// What `fovea compare` would train.
struct ComparisonPlan {
  int64_t runs = 0;
  std::vector<std::pair<std::string, RunPlan>> variants;  ///< in their order
  WorkerChoice choice;

  nlohmann::ordered_json workers_json() const {
    return {{"runs", runs},
            {"workers", choice.workers},
            {"threads", choice.threads},
            {"reason", choice.reason}};
  }
};

std::optional<ComparisonPlan> plan_comparison(const LoadedRecipe& loaded, int64_t vocabulary) {
  if (loaded.compare.kind == ConfigNode::Kind::null) return std::nullopt;
  const CompareConfig config = read_compare_config(loaded.compare);
  const std::vector<PlannedRun> runs = plan_runs(loaded, config, "", vocabulary);
  ComparisonPlan plan{.runs = std::ssize(runs), .choice = choose_workers(config, runs, vocabulary)};
  for (const PlannedRun& run : std::span(runs).first(config.variants.size()))
    plan.variants.emplace_back(run.variant, plan_run(run.recipe, vocabulary));
  return plan;
}

void print_parameters(const RunPlan& plan, int64_t width) {
  TextTable table({{.title = "parameters"},
                   {.title = "number", .right = true},
                   {.title = "share", .right = true}});
  const ParameterParts& p = plan.parameters;
  const auto add = [&](const char* name, int64_t n) {
    if (n == 0) return;
    table.add_row(
        {name, grouped(n),
         fmt::format("{:.1f} %", 100.0 * static_cast<double>(n) / static_cast<double>(p.total()))});
  };
  add(plan.model.tied ? "embedding (is the head too)" : "embedding", p.embedding);
  add("attention", p.attention);
  add("feed-forward", p.feed_forward);
  add("norms", p.norms);
  add("head", p.head);
  add("added by mechanisms, adapters", p.added);
  table.add_rule();
  table.add_row({"total", grouped(p.total()), ""});
  if (p.trainable != p.total()) table.add_row({"trainable", grouped(p.trainable), ""});
  print(table.render(width) + "\n");
}

void print_cost(const RunPlan& plan, double speed, bool measured, int64_t width) {
  TextTable table({{.title = "cost"}, {.title = "", .right = true}});
  table.add_row({"forward, a token", scaled(plan.forward_per_token, "FLOP")});
  table.add_row({"  of it over pairs of tokens",
                 fmt::format("{} ({:.0f} keys)", scaled(plan.attention_per_token, "FLOP"),
                             plan.visible_keys)});
  if (plan.receptive_field < plan.model.context)
    table.add_row({"tokens that all windows reach together", grouped(plan.receptive_field)});
  table.add_row({"forward and backward, a token", scaled(plan.training_per_token, "FLOP")});
  table.add_row({"tokens a step", grouped(plan.step_tokens)});
  if (plan.tokens > 0) {
    table.add_row({"tokens of the run", scaled(static_cast<double>(plan.tokens), "")});
    table.add_row({"the run", scaled(plan.training_operations(), "FLOP")});
  }
  table.add_row({"tokens for 20 a parameter (Chinchilla)", scaled(plan.chinchilla_tokens, "")});
  table.add_rule();
  table.add_row(
      {measured ? "this machine's linear layers" : "stated speed", scaled(speed, "FLOP/s")});
  table.add_row({"tokens a second, at most", scaled(speed / plan.training_per_token, "")});
  if (plan.tokens > 0)
    table.add_row({"time, at least", duration(plan.training_operations() / speed)});
  print(table.render(width) + "\n");
}

void print_memory(const RunPlan& plan, int64_t width) {
  TextTable table({{.title = "memory of training"}, {.title = "", .right = true}});
  const MemoryPlan& m = plan.memory;
  const auto add = [&](const char* name, int64_t bytes) {
    table.add_row({name, scaled(static_cast<double>(bytes), "B")});
  };
  add("program and libraries", m.program);
  add("weights and their copies", m.weights);
  add("gradients", m.gradients);
  add("optimizer", m.optimizer);
  add("activations", m.activations);
  add("largest temporaries", m.transient);
  table.add_rule();
  add("peak", m.total());
  print(table.render(width) + "\n");
}

void print_decode(const RunPlan& plan, int64_t width) {
  TextTable table({{.title = fmt::format("decoding at {} tokens, bfloat16", plan.model.context)},
                   {.title = "cache a sequence", .right = true},
                   {.title = "read a token", .right = true},
                   {.title = "FLOP a token", .right = true},
                   {.title = "FLOP a cache byte", .right = true}});
  for (const DecodePlan& d : plan.decode) {
    table.add_row({d.name + (d.is_model ? "  <- this model" : ""),
                   scaled(static_cast<double>(d.cache_bytes), "B"), scaled(d.bytes_read, "B"),
                   scaled(d.operations, ""), fmt::format("{:.1f}", d.intensity_of_cache)});
  }
  print(table.render(width) + "\n");
}

void print_rules(const RunPlan& plan, int64_t width) {
  TextTable table({{.title = "rule of thumb", .shrinks = true},
                   {.title = "here"},
                   {.title = "verdict"},
                   {.title = "source"}});
  for (const RuleCheck& r : plan.rules)
    table.add_row({r.rule, r.value, std::string(enum_name(r.verdict)), r.source});
  for (const RuleCheck& r : plan.rules) {
    if (!r.advice.empty()) table.add_note(fmt::format("{}: {}", r.rule, r.advice));
  }
  print(table.render(width));
}

void print_comparison(const ComparisonPlan& comparison, int64_t width) {
  TextTable table({{.title = "variant", .shrinks = true},
                   {.title = "parameters", .right = true},
                   {.title = "to the first", .right = true},
                   {.title = "FLOP a token", .right = true}});
  const int64_t first = comparison.variants.front().second.parameters.total();
  for (const auto& [name, plan] : comparison.variants) {
    table.add_row({name, grouped(plan.parameters.total()),
                   fmt::format("{:+}", plan.parameters.total() - first),
                   scaled(plan.training_per_token, "")});
  }
  table.add_note("");
  table.add_note(comparison.choice.sentence(comparison.runs));
  print("\n" + table.render(width));
}

void run(const PlanVerbOptions& options, const Globals& globals) {
  const LoadedRecipe loaded = load_recipe(options.recipe, options.overrides);
  const std::string& name = loaded.recipe.tokenizer;
  const int64_t vocabulary = loaded.recipe.model.vocab_size > 0
                                 ? loaded.recipe.model.vocab_size
                                 : open_named_tokenizer(name)->vocab_size();
  const RunPlan plan = plan_run(loaded.recipe, vocabulary);
  const std::optional<ComparisonPlan> comparison = plan_comparison(loaded, vocabulary);
  const bool measured = options.speed <= 0.0;
  const double speed = measured ? measure_speed(plan, loaded.recipe) : options.speed;
  std::optional<RanksAnswer> ranks;
  if (options.ranks.asked()) ranks = plan_ranks(options.ranks, loaded.recipe, vocabulary, speed);
  if (globals.json) {
    nlohmann::ordered_json json = plan.to_json();
    json["speed"] = {{"operations_per_second", speed}, {"measured", measured}};
    if (comparison) {
      for (const auto& [variant, its] : comparison->variants)
        json["variants"].push_back({{"name", variant}, {"plan", its.to_json()}});
      json["comparison"] = comparison->workers_json();
    }
    if (ranks) json["ranks"] = ranks->to_json();
    print(json.dump(2) + "\n");
    return;
  }
  const int64_t width = stdout_width();
  print_parameters(plan, width);
  print_cost(plan, speed, measured, width);
  print_memory(plan, width);
  print_decode(plan, width);
  print_rules(plan, width);
  if (comparison) print_comparison(*comparison, width);
  if (ranks) ranks->print_table(width);
}

}  // namespace

Verb add_plan_verb(Command& app, Globals& globals) {
  auto options = std::make_shared<PlanVerbOptions>();
  Command* verb = app.add_subcommand(
      "plan", "what a run will cost, and which rules of thumb it breaks, before it runs");
  verb->add_option("recipe", options->recipe, "YAML file; reads no data, allocates no weights")
      ->required();
  verb->add_option("overrides", options->overrides, "key=value, for example model.kv_heads=2");
  verb->add_option(
          "--flops", options->speed,
          "FLOP/s that the time is reckoned with, for example 4e14; default: measured here")
      ->check(in_range({1, 1e30}));
  add_plan_ranks_options(*verb, options->ranks);
  add_global_options(*verb, globals);
  return {verb, [options, &globals] { run(*options, globals); }};
}

}  // namespace fovea::cli
