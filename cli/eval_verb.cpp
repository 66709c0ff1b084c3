// fovea eval: how well a model predicts a text.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "cli/options.h"
#include "cli/verbs.h"
#include "fovea/base/error.h"
#include "fovea/checkpoint/model_folder.h"
#include "fovea/checkpoint/run_folder.h"
#include "fovea/data/document_reader.h"
#include "fovea/eval/copy_score.h"
#include "fovea/eval/scoring.h"
#include "fovea/report/table.h"
#include "fovea/train/machine.h"

namespace fovea::cli {
namespace {

constexpr int64_t kCopyWindows = 16;

struct Options {
  std::string model;
  std::vector<std::string> texts;
  int64_t window = 0, stride = 0, rows = 8;
  std::string focus = "configured";
  int64_t top_k = 0, copy = 0;
};

class Collect : public DocumentSink {
 public:
  Collect(std::vector<ScoreDocument>& documents, std::string source)
      : documents_(documents), source_(std::move(source)) {}
  void append(std::string_view text) override { text_ += text; }
  void end() override {
    if (!text_.empty()) documents_.push_back({source_, std::move(text_)});
    text_.clear();
  }
  void abandon() override { text_.clear(); }

 private:
  std::vector<ScoreDocument>& documents_;
  std::string source_, text_;
};

std::vector<ScoreDocument> read_texts(const std::vector<std::string>& paths) {
  std::vector<ScoreDocument> documents;
  for (const std::string& path : paths) {
    DataSource source;
    source.path = path;
    Collect sink(documents, source_name(source));
    StoreCounts counts;
    for (const SourceFile& file : list_source_files(source).files)
      read_documents(file, {}, sink, counts, {});
  }
  require<InputError>(!documents.empty(), "eval", "no text to score in {}; check the paths",
                      fmt::join(paths, ", "));
  return documents;
}

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

void run(const Options& options, const Globals& globals) {
  LoadedModel loaded = load_model(resolve_model_folder(options.model));
  ComputeOptions& compute = loaded.model.compute();
  compute.focus = parse_choice<FocusMode>("--focus", options.focus, enum_names(FocusMode{}));
  const int64_t groups = loaded.model.config().attention.focus.groups.groups;
  require<UsageError>(options.top_k >= 0 && options.top_k <= groups, "--top-k",
                      "expected 1 to the model's {} groups; got {}", groups, options.top_k);
  compute.focus_top_k = options.top_k;
  const std::vector<ScoreDocument> documents = read_texts(options.texts);
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
  if (loaded.model.has_focus())
    print(fmt::format("focus {}: {:.1f} % of all pairs, {:.1f} % of distant pairs kept\n",
                      options.focus, 100.0 * result.pairs_kept, 100.0 * result.distant_kept));
  if (options.copy > 0)
    print(fmt::format("copy of {} tokens: perplexity {:.3f}, the second time {:.3f}\n", copy.length,
                      copy.first, copy.second));
}

}  // namespace

Verb add_eval_verb(CLI::App& app, Globals& globals) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand(
      "eval", "score a text: perplexity per token, byte and word, by source and position");
  verb->add_option("model", options->model, "run folder, checkpoint or model folder")->required();
  verb->add_option("--text", options->texts,
                   "text file, folder or JSONL; repeat for several sources")
      ->required();
  verb->add_option("--window", options->window, "inputs of a window; 0 = the trained context");
  verb->add_option("--stride", options->stride,
                   "targets that each window after the first scores; 0 = window (disjoint)");
  verb->add_option("--rows", options->rows, "windows computed at a time");
  verb->add_option("--focus", options->focus,
                   "models with Focus: configured, hard, off, random (groups, at equal pairs)");
  verb->add_option("--top-k", options->top_k, "groups of a token under --focus hard or random");
  verb->add_option("--copy", options->copy,
                   "also the perplexity of so many tokens the second time they come");
  add_global_options(*verb, globals);
  return {.parser = verb,
          .run = [options, &globals] { run(*options, globals); },
          .memory_remedy = "lower --rows or --window, or take a smaller model"};
}

}  // namespace fovea::cli
