// Counting words, following variables, copying lists.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "fovea/eval/made/copying.h"
#include "fovea/eval/made/variable_tracking.h"
#include "fovea/eval/made/word_counts.h"
#include "tests/support/expect_error.h"
#include "tests/support/made_questions.h"

namespace fovea::made_words_test {
namespace {

using namespace fovea::testing;
using ::testing::HasSubstr;

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::map<std::string, int64_t> counts_of(const std::vector<std::string>& words) {
  std::map<std::string, int64_t> counts;
  for (const std::string& word : words) ++counts[word];
  return counts;
}

/// The words of the last numbered list of a CWE prompt; the numbers rise by one.
std::vector<std::string> listed(const std::string& context) {
  const std::string open = "appear most often.\n";
  const size_t begin = context.rfind(open) + open.size();
  const auto parts = words_of(context.substr(begin, context.find("\nQuestion", begin) - begin));
  std::vector<std::string> words;
  for (size_t i = 0; i + 1 < parts.size(); i += 2) {
    EXPECT_EQ(parts[i], std::to_string(i / 2 + 1) + ".");
    words.push_back(parts[i + 1]);
  }
  return words;
}

TEST(CommonWordsQuestion, HasTenWordsThatComeMoreOftenAndTheyAreTheAnswer) {
  for (const int64_t length : {3000, 12000}) {
    const TaskItem item = common_words_question(sample_of(length, 2));
    const CommonWords expected = length < 4096
                                     ? CommonWords{.words = 10, .repeats = 6, .other_repeats = 1}
                                     : CommonWords{.words = 10, .repeats = 30, .other_repeats = 3};
    std::set<std::string> common;
    for (const auto& [word, count] : counts_of(listed(item.context))) {
      if (count == expected.repeats) common.insert(word);
      EXPECT_TRUE(count == expected.repeats || count == expected.other_repeats) << word;
    }
    EXPECT_EQ(common, std::set<std::string>(item.references.begin(), item.references.end()));
    EXPECT_EQ(common.size(), 10u);
    // A word more is other_repeats entries of "12345. adjective-noun ".
    expect_full(item.context, length, kCommonAnswerTokens, expected.other_repeats * 30 + 30);
  }
}

TEST(CommonWordsQuestion, StandsBehindASolvedListOfOtherWords) {
  const TaskItem item = common_words_question(sample_of(3000, 5));
  EXPECT_EQ(occurrences(item.context, "Below is a numbered list of words."), 2);
  const std::string solved =
      between(item.context, "in the list are: 1. ", "\nBelow is a numbered list");
  EXPECT_THAT(solved, HasSubstr(" 10. "));
  const auto asked = counts_of(listed(item.context));
  for (const std::string& word : words_of(solved)) EXPECT_FALSE(asked.contains(word)) << word;
  EXPECT_TRUE(item.context.ends_with("The top 10 words that appear most often in the list are:"));
}

TEST(FrequentWords, ComeAsOftenAsTheZetaDistributionSays) {
  // n k^-2 / zeta(2) with zeta(2) = 1.6449340668: 607.927 for k = 1 of 1000, then a quarter ...
  const std::vector<int64_t> counts = frequent_word_counts(1000, 2000);
  ASSERT_EQ(counts.size(), 24u);  // 607.927 / 24^2 = 1.06, / 25^2 = 0.97
  EXPECT_EQ(counts[0], 607);
  EXPECT_EQ(counts[1], 151);
  EXPECT_EQ(counts[2], 67);
  EXPECT_EQ(counts[3], 37);
  EXPECT_EQ(counts[23], 1);
  EXPECT_EQ(frequent_word_counts(1000, 5).size(), 5u);
  EXPECT_TRUE(frequent_word_counts(1, 5).empty());
}

TEST(FrequentWords, OfAQuestionHaveTheseCountsWithDotsFirst) {
  for (const int64_t length : {1000, 4000, 9000}) {
    const TaskItem item = frequent_words_question(sample_of(length, 1));
    expect_full(item.context, length, kFrequentAnswerTokens, 40);
    const auto words = words_of(between(item.context, "coded words. \n", "\nQuestion:"));
    auto counts = counts_of(words);
    std::vector<int64_t> sorted;
    for (const auto& [word, count] : counts) sorted.push_back(count);
    std::ranges::sort(sorted, std::greater<>());
    ASSERT_EQ(counts.count("..."), 1u);
    EXPECT_EQ(counts["..."], sorted.front());
    ASSERT_EQ(item.references.size(), 3u);
    for (size_t k = 0; k < 3; ++k) EXPECT_EQ(counts[item.references[k]], sorted[k + 1]);
    EXPECT_GT(sorted[3], sorted.size() > 4 ? sorted[4] : 0) << "the last answer is no tie";
    // Some n gives exactly these counts.
    const double zeta = 1.6449340668482264;
    const auto from = static_cast<int64_t>(std::floor(static_cast<double>(sorted[0]) * zeta));
    bool found = false;
    for (int64_t n = from; n <= from + 3 && !found; ++n)
      found = frequent_word_counts(n, length / 50) == sorted;
    EXPECT_TRUE(found) << length;
  }
}

TEST(FrequentWords, RefuseALengthInWhichTheAnswerWouldBeATie) {
  EXPECT_ERROR(ConfigError, frequent_words_question(sample_of(500)), "ruler_fwe", "500");
}

TEST(Variables, OfTheAnswerAreThoseThatHoldTheValue) {
  for (const int64_t length : {1600, 5000}) {
    for (int64_t number = 0; number < 5; ++number) {
      const TaskItem item = variable_question({.chains = 2, .hops = 4}, sample_of(length, number));
      expect_full(item.context, length, kVariableAnswerTokens, 100);
      const size_t second = item.context.rfind("Memorize and track");
      const std::string text = item.context.substr(second),
                        value = between(text, "that are assigned the value ", " in the text above");
      // An interpreter of our own: every line in its order.
      std::map<std::string, std::string> values;
      const auto words = words_of(text.substr(0, text.find("\nQuestion")));
      for (size_t i = 0; i + 3 < words.size(); ++i) {
        if (words[i] != "VAR" || words[i + 2] != "=") continue;
        values[words[i + 1]] = words[i + 3] == "VAR" ? values[words[i + 4]] : words[i + 3];
      }
      std::set<std::string> holding;
      for (const auto& [variable, held] : values) {
        EXPECT_FALSE(held.empty()) << variable << " is assigned before it is used";
        if (held == value) holding.insert(variable);
      }
      EXPECT_EQ(values.size(), 10u);
      EXPECT_EQ(holding, std::set<std::string>(item.references.begin(), item.references.end()));
      EXPECT_TRUE(
          item.context.ends_with("5 variables are assigned the value " + value + ", they are:"));
    }
  }
}

TEST(Variables, AreShownOnceSolved) {
  const TaskItem item = variable_question({}, sample_of(2000));
  EXPECT_EQ(occurrences(item.context, "Memorize and track"), 2);
  const auto solved = words_of(between(item.context, "they are: ", "\n\nMemorize"));
  EXPECT_EQ(solved.size(), 5u);
  for (const std::string& variable : solved) EXPECT_EQ(variable.size(), 3u);
}

TEST(Variables, RefuseNoChainAndNoHop) {
  EXPECT_ERROR(ConfigError, variable_question({.chains = 0}, sample_of(2000)), "0 chains");
  EXPECT_ERROR(ConfigError, variable_question({.hops = 0}, sample_of(2000)), "0 hops");
  EXPECT_ERROR(ConfigError, variable_question({}, sample_of(500)), "ruler_vt", "500");
}

TEST(Copying, TheGoldChoiceFollowedInTheListAndNoOtherDid) {
  for (const CopyKind kind : {CopyKind::copy, CopyKind::induction}) {
    for (int64_t number = 0; number < 20; ++number) {
      const TaskItem item = copy_question(kind, sample_of(1500, number));
      expect_full(item.context, 1500, 8, kind == CopyKind::copy ? 60 : 40);
      auto words = words_of(item.context);
      const std::string last = words.back();
      const auto first = std::ranges::find(words, last);
      ASSERT_LT(first - words.begin(), std::ssize(words) - 1) << "the last word came before";
      ASSERT_EQ(item.choices.size(), 10u);
      EXPECT_EQ(item.choices[static_cast<size_t>(item.gold)], " " + *(first + 1));
      std::set<std::string> choices(item.choices.begin(), item.choices.end());
      EXPECT_EQ(choices.size(), 10u);
      EXPECT_FALSE(choices.contains(" " + last));
      for (const std::string& choice : choices)
        EXPECT_NE(std::ranges::find(words, choice.substr(1)), words.end()) << choice;
    }
  }
}

TEST(Copying, TheListBeginsAgainUpToTheDepth) {
  for (const double depth : {0.0, 0.5, 1.0}) {
    MadeSample sample = sample_of(2000, 1);
    sample.depth = depth;
    const TaskItem item = copy_question(CopyKind::copy, sample);
    const size_t end = item.context.find('\n');
    const std::string list = item.context.substr(0, end), again = item.context.substr(end + 1);
    EXPECT_TRUE(list.starts_with(again));
    EXPECT_NEAR(static_cast<double>(again.size()) / static_cast<double>(list.size()), depth, 0.06);
  }
}

TEST(Copying, GoldIsAtEveryPlaceNowAndThen) {
  std::set<int64_t> golds;
  for (int64_t number = 0; number < 100; ++number)
    golds.insert(copy_question(CopyKind::induction, sample_of(400, number)).gold);
  EXPECT_EQ(golds.size(), 10u);
}

TEST(MadeWordTasks, EqualSeedsGiveEqualBytesAndOthersDiffer) {
  const std::function<TaskItem(const MadeSample&)> tasks[] = {
      common_words_question, frequent_words_question,
      [](const MadeSample& s) { return variable_question({}, s); },
      [](const MadeSample& s) { return copy_question(CopyKind::copy, s); },
      [](const MadeSample& s) { return copy_question(CopyKind::induction, s); }};
  for (const auto& task : tasks) {
    EXPECT_EQ(task(sample_of(3000, 1)).context, task(sample_of(3000, 1)).context);
    EXPECT_NE(task(sample_of(3000, 1)).context, task(sample_of(3000, 2)).context);
    EXPECT_NE(task(sample_of(3000, 1)).context, task(sample_of(3000, 1, 8)).context);
  }
}

}  // namespace
}  // namespace fovea::made_words_test
