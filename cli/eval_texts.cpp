// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/eval_texts.h"

#include <nlohmann/json.hpp>

#include "cli/interruption.h"
#include "cli/options.h"
#include "cli/prompts.h"
#include "fovea/base/error.h"
#include "fovea/eval/text_quality.h"
#include "fovea/report/table.h"

namespace fovea::cli {
namespace {

void print_quality(const TextQuality& q) {
  TextTable table({{.title = "measure"}, {.title = "value", .right = true}, {.title = "of"}});
  for (int n = 0; n < 3; ++n)
    table.add_row({fmt::format("distinct-{}", n + 1), fmt::format("{:.4f}", q.distinct[n]),
                   "different n-grams, all texts together"});
  table.add_row({"repetition-4", fmt::format("{:.4f}", q.repetition), "4-grams that came before"});
  table.add_row({"self-perplexity", fmt::format("{:.3f}", q.self_perplexity), "the model's own"});
  if (q.agreement >= 0.0) {
    table.add_row({"agreement", fmt::format("{:.2f} %", 100.0 * q.agreement),
                   "tokens that the base would write greedily"});
    table.add_row({"base perplexity", fmt::format("{:.3f}", q.base_perplexity), "the base's"});
  }
  table.add_note(fmt::format("{} texts, {} tokens", q.texts, q.tokens));
  print(table.render(stdout_width()));
}

}  // namespace

void add_eval_text_options(Command& verb, EvalTextOptions& options) {
  verb.add_option("--prompts", options.prompts,
                  "file of prompts as for `fovea generate`: measure what the model writes behind "
                  "them (distinct-n, repetition, its own perplexity)");
  verb.add_option(
      "--base", options.base,
      "with --prompts: another model over the same tokens, of which agreement is asked");
  verb.add_option("--max-tokens", options.max_tokens, "with --prompts: new tokens of a text")
      ->check(in_range({1, ranges::kMostPositions}));
  verb.add_option("--temperature", options.temperature, "with --prompts; 0 = greedy")
      ->check(in_range({0, 1000}));
}

void run_eval_texts(const EvalTextOptions& options, int64_t seed, const Globals& globals,
                    const LoadedModel& loaded) {
  const GenerateOptions generate{.sampling = {.temperature = options.temperature},
                                 .max_tokens = options.max_tokens,
                                 .seed = seed};
  const std::vector<TextRequest> requests =
      requests_of(read_prompts(options.prompts, generate, {}, loaded));
  std::optional<LoadedModel> base;
  if (!options.base.empty()) {
    base.emplace(open_changed(find_model(options.base), {}));
    require<UsageError>(base->tokenizer->fingerprint() == loaded.tokenizer->fingerprint(), "--base",
                        "expected a model with the same tokenizer; got another one");
  }
  Progress progress(stderr_progress(globals));
  InterruptGuard interrupt;
  leave_within_a_second(interrupt, globals, "[eval] interrupted; nothing was written");
  const TextQuality quality =
      measure_text_quality(loaded.model, *loaded.tokenizer, requests,
                           {.base = base ? &base->model : nullptr,
                            .progress =
                                [&](int64_t done, int64_t total) {
                                  progress.update({.label = "writing",
                                                   .done = static_cast<double>(done),
                                                   .total = static_cast<double>(total)});
                                },
                            .interrupt = interrupt.flag()});
  progress.finish();
  if (globals.json) return print(quality.to_json().dump(2) + "\n");
  print_quality(quality);
}

}  // namespace fovea::cli
