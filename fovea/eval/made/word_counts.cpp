// Lists and coded texts.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/made/word_counts.h"

#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "fovea/base/error.h"
#include "fovea/eval/made/draw.h"
#include "fovea/eval/made/word_pool.h"

namespace fovea {
namespace {

constexpr std::string_view kCommonName = "ruler_cwe", kFrequentName = "ruler_fwe";
constexpr int64_t kShortPrompt = 4096;  // below this lists have the small counts
constexpr int64_t kTokensPerCode = 50;  // of the prompt, for each word of the coded vocabulary
constexpr int64_t kFewestCodes = 4;     // the noise and three answers
constexpr double kZeta2 = std::numbers::pi * std::numbers::pi / 6.0;  // zeta(2)

struct WordList {
  std::string numbered;
  std::vector<std::string> common;
};

/// `rng` orders the list: the same for every number of other words.
WordList make_list(WordPool& pool, int64_t begin, int64_t others, const CommonWords& counts,
                   Rng rng) {
  WordList list{.numbered = "", .common = pool.get(begin, counts.words)};
  std::vector<std::string> words;
  for (const std::string& word : list.common)
    words.insert(words.end(), static_cast<size_t>(counts.repeats), word);
  for (const std::string& word : pool.get(begin + counts.words, others))
    words.insert(words.end(), static_cast<size_t>(counts.other_repeats), word);
  shuffle(rng, words);
  for (size_t i = 0; i < words.size(); ++i)
    list.numbered += fmt::format("{}{}. {}", i == 0 ? "" : " ", i + 1, words[i]);
  return list;
}

std::string list_prompt(const WordList& list) {
  return fmt::format(
      "Below is a numbered list of words. In these words, some appear more often than others. "
      "Memorize the ones that appear most often.\n{}\nQuestion: What are the 10 most common words "
      "in the above list? Answer: The top 10 words that appear most often in the list are:",
      list.numbered);
}

std::string coded_prompt(const std::vector<std::string>& vocabulary, int64_t words, Rng rng) {
  const std::vector<int64_t> counts = frequent_word_counts(words, std::ssize(vocabulary));
  std::vector<std::string_view> text;
  for (size_t k = 0; k < counts.size(); ++k)
    text.insert(text.end(), static_cast<size_t>(counts[k]), vocabulary[k]);
  shuffle(rng, text);
  return fmt::format(
      "Read the following coded text and track the frequency of each coded word. Find the three "
      "most frequently appeared coded words. \n{}\nQuestion: Do not provide any explanation. "
      "Please "
      "ignore the dots '....'. What are the three most frequently appeared words in the above "
      "coded "
      "text?\nAnswer: According to the coded text above, the three most frequently appeared words "
      "are:",
      fmt::join(text, " "));
}

}  // namespace

CommonWords common_words_of(int64_t length) {
  if (length < kShortPrompt) return {.words = 10, .repeats = 6, .other_repeats = 1};
  return {};
}

TaskItem common_words_question(const MadeSample& sample) {
  check_sample(sample, kCommonName);
  Rng rng = random_numbers(sample, kCommonName);
  WordPool pool(rng);
  const CommonWords counts = common_words_of(sample.length);
  const bool is_short = sample.length < kShortPrompt;
  const Rng order(rng.next_u64()), example_order(rng.next_u64());
  const WordList solved =
      make_list(pool, 0, is_short ? 10 : 30,
                {.words = 10, .repeats = is_short ? 3 : 10, .other_repeats = counts.other_repeats},
                example_order);
  std::string example = list_prompt(solved);
  for (size_t i = 0; i < solved.common.size(); ++i)
    example += fmt::format(" {}. {}", i + 1, solved.common[i]);
  example += "\n";
  const int64_t first = 40;  // words that the example has not
  SizedPrompt sized =
      largest_prompt(sample, kCommonName, kCommonAnswerTokens, 1,
                     std::numeric_limits<int32_t>::max(), [&](int64_t others) {
                       return example + list_prompt(make_list(pool, first, others, counts, order));
                     });
  return {.index = sample.number,
          .context = std::move(sized.text),
          .references = pool.get(first, counts.words),
          .axes = {{"length", static_cast<double>(sample.length)}}};
}

std::vector<int64_t> frequent_word_counts(int64_t n, int64_t vocabulary) {
  std::vector<int64_t> counts;
  for (int64_t k = 1; k <= vocabulary; ++k) {
    const auto rank = static_cast<double>(k);
    const auto count =
        static_cast<int64_t>(std::floor(static_cast<double>(n) / (rank * rank) / kZeta2));
    if (count == 0) break;
    counts.push_back(count);
  }
  return counts;
}

TaskItem frequent_words_question(const MadeSample& sample) {
  check_sample(sample, kFrequentName);
  Rng rng = random_numbers(sample, kFrequentName);
  DistinctDraws codes(DrawKind::codes);
  std::vector<std::string> vocabulary{"..."};
  const int64_t size = std::max(kFewestCodes, sample.length / kTokensPerCode);
  while (std::ssize(vocabulary) < size) vocabulary.push_back(codes(rng));
  // n / zeta(2) (1/16 - 1/25) >= 1: from here on the last answer, rank 4, comes more often than
  // rank 5.
  constexpr int64_t kFewestWords = 74;
  const Rng order(rng.next_u64());
  SizedPrompt sized = largest_prompt(sample, kFrequentName, kFrequentAnswerTokens, kFewestWords,
                                     std::numeric_limits<int32_t>::max(), [&](int64_t words) {
                                       return coded_prompt(vocabulary, words, order);
                                     });
  return {.index = sample.number,
          .context = std::move(sized.text),
          .references = {vocabulary.begin() + 1, vocabulary.begin() + 4},
          .axes = {{"length", static_cast<double>(sample.length)}}};
}

}  // namespace fovea
