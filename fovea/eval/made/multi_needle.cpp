// Magic numbers of cities.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/made/multi_needle.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "fovea/base/error.h"
#include "fovea/eval/made/draw.h"
#include "fovea/eval/made/english_words.h"

namespace fovea {
namespace {

constexpr int64_t kMostNeedles = 20;
constexpr int64_t kFirstNumber = 10, kNumbers = 90;  // two digits

/// Words of the sentences before each place where a needle may stand: 0 ... all sentences.
std::vector<int64_t> words_before(const std::vector<std::string>& sentences) {
  std::vector<int64_t> before{0};
  for (const std::string& sentence : sentences)
    before.push_back(before.back() + 1 + std::ranges::count(sentence, ' '));
  return before;
}

/// Needle k moved back to the end of the sentence before it.
std::string pour(const std::vector<std::string>& sentences, const std::vector<std::string>& needles,
                 double depth) {
  const std::vector<int64_t> before = words_before(sentences);
  const double step = (1.0 - depth) / static_cast<double>(needles.size());
  std::vector<std::string_view> text;
  size_t taken = 0;
  for (size_t k = 0; k < needles.size(); ++k) {
    const double share = std::min(1.0, depth + static_cast<double>(k) * step);
    const auto words =
        static_cast<int64_t>(std::floor(share * static_cast<double>(before.back()) + 1e-9));
    const auto place =
        static_cast<size_t>(std::ranges::upper_bound(before, words) - before.begin() - 1);
    while (taken < place) text.push_back(sentences[taken++]);
    text.push_back(needles[k]);
  }
  while (taken < sentences.size()) text.push_back(sentences[taken++]);
  return fmt::format("{}", fmt::join(text, " "));
}

}  // namespace

TaskItem multi_needle_question(int64_t needles, const MadeSample& sample, const Prose& prose) {
  const std::string name = fmt::format("multi_needle_{}", needles);
  check_sample(sample, name);
  require<ConfigError>(needles >= 1 && needles <= kMostNeedles, name,
                       "the needles must be 1 to {}; got {}", kMostNeedles, needles);
  Rng rng = random_numbers(sample, name);
  const auto cities = city_names();
  const std::vector<int64_t> named = draw_subset(rng, std::ssize(cities), needles),
                             numbers = draw_subset(rng, kNumbers, needles);
  std::vector<std::string> lines;
  for (size_t k = 0; k < named.size(); ++k)
    lines.push_back(fmt::format("The magic number of {} is {}.",
                                cities[static_cast<size_t>(named[k])], kFirstNumber + numbers[k]));
  const auto asked = static_cast<size_t>(draw_below(rng, needles));
  const int64_t from = draw_below(rng, std::ssize(prose.sentences));
  const double depth = sample.depth.value_or(
      static_cast<double>(sample.number % kMultiNeedleDepths) / (kMultiNeedleDepths - 1));
  const std::string question =
      fmt::format("The magic number of {} is", cities[static_cast<size_t>(named[asked])]);
  SizedPrompt sized =
      largest_prompt(sample, name, kMultiNeedleAnswerTokens, 1, std::numeric_limits<int32_t>::max(),
                     [&](int64_t words) {
                       return pour(take_words(prose, from, words), lines, depth) + "\n" + question;
                     });
  return {.index = sample.number,
          .context = std::move(sized.text),
          .references = {std::to_string(kFirstNumber + numbers[asked])},
          .axes = {{"length", static_cast<double>(sample.length)}, {"depth", depth}}};
}

}  // namespace fovea
