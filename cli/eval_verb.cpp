// fovea eval: how well a model predicts a text, answers the questions of tasks, and writes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "cli/eval_stream.h"
#include "cli/eval_systems.h"
#include "cli/eval_tasks.h"
#include "cli/eval_texts.h"
#include "cli/options.h"
#include "cli/ranks.h"
#include "cli/retention_table.h"
#include "cli/verbs.h"
#include "fovea/base/error.h"
#include "fovea/eval/copy_score.h"
#include "fovea/eval/retention.h"
#include "fovea/eval/score_documents.h"
#include "fovea/eval/scoring.h"
#include "fovea/report/table.h"
#include "fovea/runtime/machine.h"
#include "fovea/runtime/worker_pool.h"

namespace fovea::cli {
namespace {

constexpr int64_t kCopyWindows = 16;

struct EvalVerbOptions {
  std::string model, device = "auto", weights = "stored", activations = "auto", dtype = "float32";
  ModelChange change;
  EvalTaskOptions tasks;
  EvalTextOptions written;
  EvalSystemOptions systems;
  EvalStreamOptions stream;
  std::vector<std::string> texts;
  int64_t window = 0, stride = 0, rows = 8;
  std::string focus = "configured";
  int64_t top_k = 0, copy = 0, sinks = -1;
  bool retention = false;
};

void print_table(const ScoreResult& result) {
  TextTable table({{.title = "source", .shrinks = true},
                   {.title = "bits/byte", .right = true},
                   {.title = "ppl/token", .right = true},
                   {.title = "ppl/word", .right = true},
                   {.title = "tokens", .right = true},
                   {.title = "bytes", .right = true},
                   {.title = "documents", .right = true}});
  const auto add = [&](const std::string& name, const ScoreTotals& t) {
    table.add_row({name, fmt::format("{:.4f}", t.bits_per_byte()),
                   fmt::format("{:.3f}", t.token_perplexity()),
                   fmt::format("{:.4g}", t.word_perplexity()), std::to_string(t.tokens),
                   std::to_string(t.bytes), std::to_string(t.documents)});
  };
  for (const auto& [name, totals] : result.sources) add(name, totals);
  if (result.sources.size() > 1) {
    table.add_rule();
    add("all", result.total);
  }
  print(table.render(stdout_width()));
  TextTable positions({{.title = "position in window", .right = true},
                       {.title = "ppl/token", .right = true},
                       {.title = "tokens", .right = true}});
  for (const PositionBucket& b : result.positions) {
    if (b.tokens == 0) continue;
    positions.add_row({fmt::format("{}-{}", b.from, b.to - 1),
                       fmt::format("{:.3f}", std::exp(b.nll / static_cast<double>(b.tokens))),
                       std::to_string(b.tokens)});
  }
  print("\n" + positions.render(stdout_width()));
  print(
      fmt::format("\nwindow {} tokens, stride {}\n", result.options.window, result.options.stride));
}

void run_retention(const EvalVerbOptions& options, const Globals& globals, LoadedModel& loaded,
                   const std::vector<ScoreDocument>& documents) {
  Progress progress(stderr_progress(globals));
  const RetentionResult result = measure_retention(
      loaded.model, *loaded.tokenizer, documents,
      {.score = {.window = options.window, .stride = options.stride, .rows = options.rows},
       .sinks = options.sinks,
       .copy = options.copy,
       .copy_windows = kCopyWindows},
      [&](std::string_view label, int64_t done, int64_t total) {
        progress.update({.label = std::string(label),
                         .done = static_cast<double>(done),
                         .total = static_cast<double>(total)});
      });
  progress.finish();
  if (globals.json) {
    print(result.to_json().dump(2) + "\n");
  } else {
    print_retention(result);
  }
}

void run_systems(const EvalVerbOptions& options, const Globals& globals, at::ScalarType dtype,
                 at::Device device) {
  require<UsageError>(!options.texts.empty() && !options.change.active(), "--systems",
                      "needs --text, and says itself which adapters and attention each system has");
  run_eval_systems(options.systems,
                   {.model = find_model(options.model),
                    .dtype = dtype,
                    .device = device,
                    .lengths = options.tasks.lengths,
                    .copy = options.copy},
                   options.texts, options.tasks.out, globals);
}

/// The ranks among which the questions of tasks are spread; none where there are no tasks.
std::optional<Ranks> join_task_ranks(const EvalVerbOptions& options, const Globals& globals,
                                     at::Device device) {
  if (options.tasks.tasks.empty() || globals.eval_workers > 0) return std::nullopt;
  std::optional<Ranks> ranks(std::in_place);
  ranks->require_same(fmt::format("{}", fmt::join(globals.arguments, " ")), "arguments");
  require<UsageError>(ranks->all().size() == 1 || device.is_cpu(), "--device",
                      "expected cpu under a launcher; got {}", device.str());
  return ranks;
}

void run(const EvalVerbOptions& options, const Globals& globals) {
  if (options.tasks.tasks.empty()) require_one_process("eval");
  const int given =
      !options.texts.empty() + !options.tasks.tasks.empty() + !options.written.prompts.empty();
  require<UsageError>(given == 1, "eval", "expected one of --text, --tasks and --prompts; got {}",
                      given == 0 ? "none" : "several; leave all but one out");
  require<UsageError>(
      options.stream.part == 0 || (!options.texts.empty() && options.systems.systems.empty() &&
                                   !options.retention && options.copy == 0),
      "--stream", "needs --text, without --systems, --retention and --copy");
  require<UsageError>(!options.tasks.tasks.empty() || options.tasks.workers == "1", "--workers",
                      "needs --tasks");
  require<UsageError>(!options.tasks.tasks.empty() ||
                          (options.tasks.against.empty() && options.tasks.depths.empty()),
                      options.tasks.against.empty() ? "--depths" : "--against", "needs --tasks");
  // Packed weights and activations are multiplied on the CPU alone.
  const at::Device device = choose_device(
      options.device, options.weights.starts_with("q") || options.activations.starts_with("int"));
  const at::ScalarType dtype = choose_dtype(
      parse_choice<DtypeChoice>("--dtype", options.dtype, enum_names(DtypeChoice{})), device);
  const std::optional<Ranks> ranks = join_task_ranks(options, globals, device);
  if (!options.systems.systems.empty()) return run_systems(options, globals, dtype, device);
  LoadedModel loaded = open_changed(find_model(options.model), options.change, device,
                                    matrix_storage(options.weights, dtype, device));
  loaded.model.compute().dtype = dtype;
  choose_activations(loaded.model, options.activations);
  choose_focus(loaded.model, options.focus, options.top_k, "--top-k");
  require<UsageError>(options.sinks < 0 || loaded.model.has("focus"), "--sinks",
                      "this model has no Focus; got {}", options.sinks);
  loaded.model.compute().focus_change.sinks = options.sinks;
  if (!options.tasks.tasks.empty())
    return run_eval_tasks(options.tasks, globals, loaded, options.model,
                          ranks ? ranks->all() : alone());
  if (!options.written.prompts.empty())
    return run_eval_texts(options.written, options.tasks.seed, globals, loaded);
  const std::vector<ScoreDocument> documents = read_score_documents(options.texts);
  if (options.stream.part > 0)
    return run_eval_stream(options.stream, documents, options.systems.tokens, globals, loaded);
  if (options.retention) return run_retention(options, globals, loaded, documents);
  Progress progress(stderr_progress(globals));
  const ScoreResult result =
      score_text(loaded.model, *loaded.tokenizer, documents,
                 {.window = options.window, .stride = options.stride, .rows = options.rows},
                 [&](int64_t done, int64_t total) {
                   progress.update({.label = "scoring",
                                    .done = static_cast<double>(done),
                                    .total = static_cast<double>(total)});
                 });
  progress.finish();
  CopyScore copy;
  if (options.copy > 0) {
    std::string text;
    for (const ScoreDocument& document : documents) text += document.text;
    copy = copy_score(loaded.model, *loaded.tokenizer, text, options.copy, kCopyWindows);
  }
  if (globals.json) {
    nlohmann::ordered_json json = result.to_json();
    if (options.copy > 0)
      json["copy"] = {{"length", copy.length},
                      {"windows", copy.windows},
                      {"perplexity", copy.first},
                      {"copy_perplexity", copy.second}};
    print(json.dump(2) + "\n");
    return;
  }
  print_table(result);
  if (loaded.model.has("focus"))
    print(fmt::format(
        "focus {}: {:.1f} % of all pairs, {:.1f} % of distant pairs kept; {:.1f} % of tiles "
        "visited ({})\n",
        options.focus, 100.0 * result.pairs_kept, 100.0 * result.distant_kept,
        100.0 * result.tiles_visited,
        fmt::join(std::set(result.plans.begin(), result.plans.end()), ", ")));
  if (options.copy > 0)
    print(fmt::format("copy of {} tokens: perplexity {:.3f}, the second time {:.3f}\n", copy.length,
                      copy.first, copy.second));
}

/// A worker tells an error to its parent, which throws it.
void run_worker_of_tasks(const EvalVerbOptions& options, const Globals& globals) {
  try {
    run(options, globals);
  } catch (const Error& error) {
    print(worker_error_line(error));
  }
}

}  // namespace

Verb add_eval_verb(Command& app, Globals& globals) {
  auto options = std::make_shared<EvalVerbOptions>();
  Command* verb = app.add_subcommand(
      "eval",
      "score a text (perplexity per token, byte and word, by source and position), ask the "
      "questions of tasks, or measure what a model writes");
  verb->add_option("model", options->model, "run folder, checkpoint, model folder or .gguf file")
      ->required();
  verb->add_option("--text", options->texts,
                   "text file, folder or JSONL; repeat for several sources");
  add_eval_task_options(*verb, options->tasks);
  add_eval_text_options(*verb, options->written);
  add_eval_system_options(*verb, options->systems);
  add_eval_stream_options(*verb, options->stream);
  verb->add_option("--device", options->device,
                   "auto (a GPU where there is one, unless --weights or --activations are "
                   "packed), cpu or cuda")
      ->capture_default_str();
  verb->add_option("--dtype", options->dtype,
                   "float32, bfloat16, or auto (bfloat16 where the processor multiplies it)")
      ->capture_default_str();
  verb->add_option("--window", options->window, "inputs of a window; 0 = the trained context")
      ->check(in_range(ranges::kPositionCounts));
  verb->add_option("--stride", options->stride,
                   "targets that each window after the first scores; 0 = window (disjoint)")
      ->check(in_range(ranges::kPositionCounts));
  verb->add_option("--rows", options->rows, "windows computed at a time")
      ->check(in_range({1, ranges::kMostRows}));
  verb->add_option("--focus", options->focus,
                   "models with Focus: configured, hard, off; random (groups), hash (groups by the "
                   "token), window (local pairs alone)");
  verb->add_option("--top-k", options->top_k,
                   "groups of a token under --focus hard, random or hash")
      ->check(in_range({0, 64}));
  verb->add_option("--sinks", options->sinks,
                   "first tokens of a document that everyone sees under Focus; -1 = the model's")
      ->check(in_range({-1, ranges::kMostPositions}));
  verb->add_flag("--retention", options->retention,
                 "models with Focus: every --top-k, beside a window with sinks that keeps as many "
                 "pairs, random groups and groups by a hash of the token");
  add_weights_options(*verb, options->weights, options->activations);
  add_change_options(*verb, options->change);
  verb->add_option("--copy", options->copy,
                   "also the perplexity of so many tokens the second time they come; 0 = not")
      ->check(in_range(ranges::kPositionCounts));
  add_global_options(*verb, globals);
  verb->footer(known_tasks_help);
  return {.parser = verb,
          .run =
              [options, &globals] {
                globals.eval_workers > 0 ? run_worker_of_tasks(*options, globals)
                                         : run(*options, globals);
              },
          .memory_remedy =
              "lower --rows, --window or, with --stream, --tokens, or take a smaller model"};
}

}  // namespace fovea::cli
