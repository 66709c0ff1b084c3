// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/eval_stream.h"

#include <nlohmann/json.hpp>

#include "cli/options.h"
#include "fovea/eval/stream_score.h"
#include "fovea/report/table.h"

namespace fovea::cli {

void add_eval_stream_options(Command& verb, EvalStreamOptions& options) {
  verb.add_option("--stream", options.part,
                  "with --text: read it as one stream through the cache, as long as it is; a line "
                  "every so many tokens: perplexity, tokens a second, memory. For attention with a "
                  "bounded cache (--attention streaming.recent=508)")
      ->check(in_range(ranges::kPositionCounts));
}

void run_eval_stream(const EvalStreamOptions& options, const std::vector<ScoreDocument>& documents,
                     int64_t tokens, const Globals& globals, const LoadedModel& loaded) {
  std::vector<int32_t> ids;
  if (loaded.tokenizer->bos() >= 0) ids.push_back(loaded.tokenizer->bos());
  for (const ScoreDocument& document : documents) loaded.tokenizer->append(document.text, ids);
  // One more than inputs: the last is predicted alone.
  if (tokens > 0 && std::ssize(ids) > tokens + 1) ids.resize(static_cast<size_t>(tokens) + 1);
  Progress progress(stderr_progress(globals));
  const StreamScore score =
      score_stream(loaded.model, ids, {.part = options.part}, [&](int64_t done, int64_t total) {
        progress.update({.label = "reading",
                         .done = static_cast<double>(done),
                         .total = static_cast<double>(total)});
      });
  progress.finish();
  if (globals.json) return print(score.to_json().dump(2) + "\n");
  TextTable table({{.title = "tokens read", .right = true},
                   {.title = "ppl/token", .right = true},
                   {.title = "tokens/s", .right = true},
                   {.title = "cache MB", .right = true},
                   {.title = "memory MB", .right = true}});
  const auto mb = [](int64_t bytes) {
    return fmt::format("{:.1f}", static_cast<double>(bytes) / 1e6);
  };
  for (const StreamPart& part : score.parts)
    table.add_row({std::to_string(part.end), fmt::format("{:.3f}", part.perplexity()),
                   fmt::format("{:.0f}", static_cast<double>(part.tokens) / part.seconds),
                   mb(part.cache_bytes), mb(part.resident_bytes)});
  table.add_note(fmt::format("all: perplexity {:.3f} a token", score.perplexity()));
  print(table.render(stdout_width()));
}

}  // namespace fovea::cli
