// fovea retrofit: another attention on a pretrained model, and a table of what it keeps and costs.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <numeric>

#include "cli/interruption.h"
#include "cli/options.h"
#include "cli/ranks.h"
#include "cli/retention_table.h"
#include "cli/verbs.h"
#include "fovea/base/error.h"
#include "fovea/report/table.h"
#include "fovea/retrofit/retrofit.h"
#include "fovea/runtime/machine.h"

namespace fovea::cli {
namespace {

constexpr double kMost = 1e12;  // steps, tokens

struct RetrofitVerbOptions {
  RetrofitOptions retrofit;
  std::string with, out;
  bool plan = false, no_speed = false;
  int64_t processes = 1;
};

std::vector<std::string> split_names(const std::string& names) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    if (end > begin) out.push_back(names.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

std::string kinds_help() {
  std::string text = "\nMechanisms of --with:\n";
  for (const RetrofitKind& kind : retrofit_kinds())
    text += fmt::format("  {:14} {}\n", kind.name, kind.help);
  return text +
         "\nThe base is frozen. Focus learns first, by --objective: the language-model loss (lm, "
         "soft groups,\nthen hard ones), the share of full attention that they keep (kept_mass: "
         "reads twice the tokens a\nminute, and makes larger groups), or the full model's "
         "predictions (distillation). Then the others\nlearn by the language-model loss, and with "
         "--finetune all weights at last. Settings are recipe keys:\n"
         "model.attention.focus.groups=4.\n\nOUT/adapter is the result: `fovea "
         "generate MODEL --adapter OUT/adapter --focus hard PROMPT`.\nWith --finetune or "
         "differential it is a model: `fovea generate OUT/model PROMPT`.\n";
}

void connect(const Globals& globals, Progress& progress, InterruptGuard& interrupt,
             RetrofitCallbacks& callbacks) {
  auto current = std::make_shared<std::string>();
  callbacks.train.stop = interrupt.flag();
  callbacks.train.message = [&](std::string_view text) { progress.message(text); };
  callbacks.train.warning = [&](std::string_view text) { progress.warning(text); };
  callbacks.train.data = [&](const CorpusProgress& p) {
    progress.update({.label = "reading " + p.source,
                     .done = static_cast<double>(p.bytes_done),
                     .total = static_cast<double>(p.bytes)});
  };
  callbacks.train.step = [&, current](const TrainProgress& p) {
    progress.update({.label = fmt::format("{} step {}", *current, p.step),
                     .done = p.fraction,
                     .total = 1.0,
                     .loss = p.loss,
                     .tokens_per_second = p.tokens_per_second});
  };
  callbacks.train.evaluating = [&, current](int64_t done, int64_t total) {
    progress.update({.label = *current + " is scored on the validation part",
                     .done = static_cast<double>(done),
                     .total = static_cast<double>(total)});
  };
  callbacks.phase = [&, current](const RetrofitPhase& phase) {
    interrupt.leave_late(nullptr);  // a phase saves first
    *current = phase.name;
    progress.message(fmt::format("phase {}: {}", phase.name, phase.help));
  };
  callbacks.table = [&](std::string_view label, int64_t done, int64_t total) {
    constexpr const char* stopped =
        "stopped while the table or the start was measured; phases that are finished stay: the "
        "same command measures again";
    require<Interrupted>(!interrupt.flag()->load(), "retrofit", "{}", stopped);
    leave_within_a_second(interrupt, globals, fmt::format("[retrofit] {}", stopped),
                          /*resumes=*/true);
    progress.update({.label = "measuring: " + std::string(label),
                     .done = static_cast<double>(done),
                     .total = static_cast<double>(total)});
  };
}

std::vector<RetrofitPhase> planned(const RetrofitVerbOptions& options) {
  return plan_retrofit(options.retrofit, load_model_config(find_model(options.retrofit.model)));
}

nlohmann::ordered_json phases_json(const std::vector<RetrofitPhase>& phases) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const RetrofitPhase& phase : phases)
    json.push_back({{"name", phase.name}, {"recipe", fields_to_json(phase.recipe)}});
  return json;
}

void print_plan(const RetrofitVerbOptions& options, const Globals& globals) {
  const std::vector<RetrofitPhase> phases = planned(options);
  if (globals.json) return print(phases_json(phases).dump(2) + "\n");
  for (const RetrofitPhase& phase : phases)
    print(fmt::format("# phase {}: {}\n{}", phase.name, phase.help,
                      fields_to_yaml(phase.recipe, true)));
}

void print_speeds(const RetrofitResult& result) {
  if (result.speeds.empty()) return;
  TextTable table({{.title = "attention"},
                   {.title = "context", .right = true},
                   {.title = "reads tokens/s", .right = true},
                   {.title = "writes tokens/s", .right = true}});
  for (const RetrofitSpeed& s : result.speeds)
    table.add_row({s.name, std::to_string(s.speed.prompt),
                   fmt::format("{:.0f}", s.speed.prompt_rate),
                   fmt::format("{:.1f}", s.speed.rate)});
  print("\n" + table.render(stdout_width()));
}

void print_start(const RetrofitResult& result) {
  const RetrofitStart& start = *result.start;
  const auto mean = [](const std::vector<double>& x) {
    return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
  };
  print(fmt::format(
      "\nDifferential has no start at the base. The nearest one costs {:+.1f} % perplexity: lambda "
      "{:.2f} in the mean of\nthe layers, W_o by least squares; an attention layer then misses "
      "{:.0f} % of the mean square of its output.\n",
      100.0 * (start.score.perplexity / result.before.perplexity - 1.0), mean(start.lambda),
      100.0 * mean(start.error)));
}

void print_result(const RetrofitResult& result) {
  print(fmt::format("{}: {} parameters on a {}base of {:.1f}M ({:.3f} %)\n",
                    fmt::join(result.kinds, ", "), result.added_parameters,
                    result.model.empty() ? "frozen " : "",
                    static_cast<double>(result.base_parameters) / 1e6,
                    100.0 * static_cast<double>(result.added_parameters) /
                        static_cast<double>(result.base_parameters)));
  for (const TrainResult& phase : result.phases)
    print(fmt::format("  {} steps, {} tokens, {:.0f} s, {:.0f} tokens/s\n", phase.steps,
                      phase.tokens, phase.seconds, phase.tokens_per_second));
  const bool copy = result.before.copy > 0.0;
  if (result.retention) {
    print("\n");
    print_retention(*result.retention);
  }
  if (!result.retention || !result.model.empty()) {
    std::vector<TableColumn> columns{{.title = "attention"}, {.title = "ppl/token", .right = true}};
    if (copy) columns.push_back({.title = "copy ppl", .right = true});
    TextTable table(columns);
    const auto add = [&](const RetrofitScore& score) {
      std::vector<std::string> cells{score.name, fmt::format("{:.3f}", score.perplexity)};
      if (copy) cells.push_back(fmt::format("{:.3f}", score.copy));
      table.add_row(std::move(cells));
    };
    add(result.before);
    if (result.start) add(result.start->score);
    add(result.after);
    print("\n" + table.render(stdout_width()));
  }
  if (result.start) print_start(result);
  print_speeds(result);
  if (!result.model.empty()) {
    print(fmt::format("\nmodel:  {}\nreport: {}\n", result.model.string(),
                      (result.model.parent_path() / "report.html").string()));
    return;
  }
  const std::filesystem::path out = result.adapter.parent_path();
  print(fmt::format(
      "\nadapter: {}\nreport:  {}\nmore:    fovea eval MODEL --systems {} --text "
      "FILE --lengths 1024,2048 --copy 512 --needles 20 --speed\n",
      result.adapter.string(), (out / "report.html").string(), (out / "systems.yaml").string()));
}

void run(RetrofitVerbOptions& options, const Globals& given) {
  options.retrofit.with = split_names(options.with);
  options.retrofit.out = options.out;
  options.retrofit.speed = !options.no_speed;
  if (options.plan) return print_plan(options, given);
  if (options.processes > 1)
    return run_in_processes(options.processes, without_processes(given.arguments));
  const Ranks ranks;
  if (ranks.all().size() > 1) {
    const std::vector<RetrofitPhase> phases = planned(options);
    ranks.require_same(phases_json(phases).dump(), "options");
    ranks.compute_on(choose_device(phases.front().recipe.train.device));
  }
  Globals globals = given;
  globals.quiet = given.quiet || !ranks.all().is_first();
  Progress progress(stderr_progress(globals));
  InterruptGuard interrupt(ranks.all().is_first() ? say_that_it_stops : nullptr);
  RetrofitCallbacks callbacks;
  connect(globals, progress, interrupt, callbacks);
  ranks.tell(progress);
  const RetrofitResult result = run_retrofit(options.retrofit, callbacks, ranks.all());
  progress.finish();
  if (!ranks.all().is_first()) return;
  if (globals.json) {
    print(result.to_json().dump(2) + "\n");
  } else {
    print_result(result);
  }
}

}  // namespace

Verb add_retrofit_verb(Command& app, Globals& globals) {
  auto options = std::make_shared<RetrofitVerbOptions>();
  RetrofitOptions& o = options->retrofit;
  Command* verb = app.add_subcommand(
      "retrofit", "put another attention on a pretrained model; run again to resume");
  verb->add_option("model", o.model, "run folder, checkpoint, model folder or .gguf file")
      ->required();
  verb->add_option("overrides", o.overrides,
                   "key=value of the recipe, for example model.attention.focus.groups=4");
  verb->add_option("--with", options->with,
                   "mechanisms, joined by commas: focus, focal, multi_token, talking_heads, "
                   "differential, lora")
      ->required();
  verb->add_option("--text", o.texts,
                   "text file, folder or JSONL to train on; repeat for several sources")
      ->required();
  verb->add_option("--out", options->out, "folder of the result; what is there goes on")
      ->required();
  verb->add_option("--held-out", o.held_out,
                   "texts of the table; without it the validation part of --text");
  verb->add_option("--minutes", o.minutes, "of training [10]")->check(in_range({0, 1e6}));
  verb->add_option("--steps", o.steps, "steps of each phase, in place of --minutes; 0 = by minutes")
      ->check(in_range({0, kMost}));
  verb->add_option("--objective", o.objective,
                   "with focus: what teaches the groups: lm, kept_mass or distillation")
      ->capture_default_str();
  verb->add_flag("--distill", o.distill,
                 "with focus: after the groups, train them hard against the full model");
  verb->add_flag("--finetune", o.finetune,
                 "after the other phases, train all weights; the result is a model");
  verb->add_option("--finetune-rate", o.finetune_rate, "learning rate of --finetune [5e-5]")
      ->check(in_range({1e-9, 1.0}));
  verb->add_option("--length", o.length, "tokens of a row, at most the base's context [1024]")
      ->check(in_range(ranges::kPositionCounts));
  verb->add_option("--tokens", o.evaluation_tokens, "tokens that the table scores; 0 = all [8192]")
      ->check(in_range({0, kMost}));
  verb->add_option("--copy", o.copy, "tokens of the table's copy score; 0 = none [256]")
      ->check(in_range(ranges::kPositionCounts));
  verb->add_option("--top-k", o.most_top_k,
                   "with focus: the table has rows for 1 to so many groups [3]")
      ->check(in_range({1, 64}));
  verb->add_option("--seed", o.seed, "of data order and first numbers")
      ->check(in_range(ranges::kSeeds));
  verb->add_option("--processes", options->processes,
                   "train on so many processes of this machine, each with its part of the rows; "
                   "needs train.batch_rows of at least as many")
      ->check(in_range({1, 1024}));
  verb->add_flag("--no-speed", options->no_speed,
                 "with focus: do not time reading and writing at T, 2T and 4T tokens");
  verb->add_flag("--plan", options->plan, "print the recipe of every phase, and stop");
  add_global_options(*verb, globals);
  verb->footer(kinds_help());
  return {.parser = verb,
          .run = [options, &globals] { run(*options, globals); },
          .resumes = true,
          .memory_remedy = "lower --length, or take a smaller model"};
}

}  // namespace fovea::cli
