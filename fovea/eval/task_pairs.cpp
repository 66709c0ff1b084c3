// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/task_pairs.h"

#include <span>
#include <string>

#include "fovea/eval/side_by_side.h"

namespace fovea {
namespace {

constexpr double kMostTokens = 16384;
constexpr int64_t kMostQuestions = 64;

std::string first_text(const TaskItem& item) {
  const std::string& context = item.contexts.empty() ? item.context : item.contexts.front();
  return item.choices.empty() ? context : context + item.choices.front();
}

bool reads_all_pairs(const Transformer& model, int64_t tokens) {
  const bool prunes = model.has("focus") && prunes_pairs(model.compute().focus);
  return !prunes && masked_pairs(model.config(), tokens) == 1.0;
}

double causal_pairs(int64_t tokens) {
  return 0.5 * static_cast<double>(tokens) * static_cast<double>(tokens + 1);
}

}  // namespace

std::optional<TaskPairs> task_pairs(const Transformer& model, const Tokenizer& tokenizer,
                                    const Task& task, const TaskInput& input, int64_t context,
                                    const std::function<void()>& step) {
  const ScoreOptions options = ScoreOptions{.window = context, .rows = 1}.resolved(model.config());
  if (reads_all_pairs(model, options.window)) return std::nullopt;
  const TaskItems items = task.items(input);
  TaskPairs out;
  double read = 0.0, all = 0.0, tokens = 0.0;
  for (int64_t n = 0; n < items.size && n < kMostQuestions && tokens < kMostTokens; ++n) {
    if (step) step();
    const ScoreDocument question{.source = task.name, .text = first_text(items.make(n))};
    if (question.text.empty()) continue;
    const ScoreResult result = score_text(model, tokenizer, std::span(&question, 1), options);
    const std::optional<double> share =
        share_of_pairs_read(model, result, result.windows.front().tokens);
    if (!share) return std::nullopt;
    for (const WindowScore& window : result.windows) {
      read += *share * causal_pairs(window.tokens);
      all += causal_pairs(window.tokens);
      tokens += static_cast<double>(window.tokens);
    }
    ++out.questions;
    if (*share >= 1.0) ++out.untouched;
  }
  if (out.questions == 0) return std::nullopt;
  out.share = read / all;
  out.tokens = tokens / static_cast<double>(out.questions);
  return out;
}

}  // namespace fovea
