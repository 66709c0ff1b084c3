// Lists of words that begin again.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/made/copying.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "fovea/eval/made/draw.h"
#include "fovea/eval/made/word_pool.h"

namespace fovea {
namespace {

constexpr int64_t kFewestWords = kCopyChoices + 1;

/// The word asked: one at least stands before it.
int64_t asked_word(double depth, int64_t words) {
  return 1 + std::llround(depth * static_cast<double>(words - 2));
}

std::string prompt(CopyKind kind, const std::vector<std::string>& words, int64_t place) {
  const std::span<const std::string> all(words);
  const auto before = static_cast<size_t>(place);
  return kind == CopyKind::copy
             ? fmt::format("{}\n{}", fmt::join(all, " "), fmt::join(all.first(before), " "))
             : fmt::format("{} {}", fmt::join(all, " "), words[before - 1]);
}

}  // namespace

TaskItem copy_question(CopyKind kind, const MadeSample& sample) {
  const std::string_view name = kind == CopyKind::copy ? "copy" : "induction";
  check_sample(sample, name);
  Rng rng = random_numbers(sample, name);
  WordPool pool(rng);
  rng = Rng(mix_seed(rng.next_u64(), 1));
  const double depth = sample.depth.value_or(static_cast<double>(sample.number % kCopyDepths) /
                                             static_cast<double>(kCopyDepths - 1));
  constexpr int64_t kAnswerTokens = 8;  // of the longest word
  SizedPrompt sized = largest_prompt(
      sample, name, kAnswerTokens, kFewestWords, std::numeric_limits<int32_t>::max(),
      [&](int64_t words) { return prompt(kind, pool.get(0, words), asked_word(depth, words)); });
  const std::vector<std::string> words = pool.get(0, sized.units);
  const int64_t place = asked_word(depth, sized.units);
  std::vector<int64_t> candidates{place};
  // Neither the word before the answer, which was just read, nor the answer itself.
  for (const int64_t i : draw_subset(rng, sized.units, kCopyChoices + 1)) {
    if (i != place && i != place - 1 && std::ssize(candidates) < kCopyChoices)
      candidates.push_back(i);
  }
  shuffle(rng, candidates);
  TaskItem item{.index = sample.number, .context = std::move(sized.text)};
  for (const int64_t i : candidates) {
    if (i == place) item.gold = std::ssize(item.choices);
    item.choices.push_back(" " + words[static_cast<size_t>(i)]);
  }
  item.axes = {{"length", static_cast<double>(sample.length)}, {"depth", depth}};
  return item;
}

}  // namespace fovea
