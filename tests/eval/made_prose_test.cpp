// Sentences, words and draws of the made tasks.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/made/prose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "fovea/base/files.h"
#include "fovea/eval/made/draw.h"
#include "fovea/eval/made/english_words.h"
#include "fovea/eval/made/sample.h"
#include "fovea/eval/made/word_pool.h"
#include "tests/support/expect_error.h"
#include "tests/support/made_questions.h"
#include "tests/support/temporary_folder.h"

namespace fovea::made_prose_test {
namespace {

using namespace fovea::testing;
using ::testing::ElementsAre;

TEST(MadeProse, SentencesEndAtMarksBeforeCapitalsButNotBehindTitlesOrInitials) {
  EXPECT_THAT(split_sentences("Mr. J. Smith came in.  \"Who is it?\" he asked.\nNobody knew! (It "
                              "rained.) Then it\nstopped... and began. 12 men left"),
              ElementsAre("Mr. J. Smith came in.", "\"Who is it?\" he asked.", "Nobody knew!",
                          "(It rained.)", "Then it stopped... and began.", "12 men left"));
  EXPECT_TRUE(split_sentences(" \n\t ").empty());
}

TEST(MadeProse, TakenWordsAreTheTextAgainAndAgainCutBetweenWords) {
  const Prose prose = make_prose("small", "One two three. Four five.");
  EXPECT_EQ(prose.words(), 5);
  EXPECT_THAT(take_words(prose, 0, 4), ElementsAre("One two three.", "Four"));
  EXPECT_THAT(take_words(prose, 1, 7), ElementsAre("Four five.", "One two three.", "Four five."));
  EXPECT_THAT(take_words(prose, 0, 2), ElementsAre("One two"));
  EXPECT_TRUE(take_words(prose, 0, 0).empty());
}

TEST(MadeProse, TheBuiltInTextHasNoNumbersAndNoCitiesThatANeedleCouldBeTakenFor) {
  const Prose& prose = built_in_prose();
  EXPECT_GT(prose.words(), 1500);
  for (const std::string& sentence : prose.sentences) {
    EXPECT_TRUE(std::ranges::none_of(sentence, [](char c) { return c >= '0' && c <= '9'; }))
        << sentence;
    for (const std::string_view city : city_names())
      EXPECT_EQ(sentence.find(city), std::string::npos) << sentence;
  }
}

TEST(MadeProse, ABookLosesItsFrameAndAFolderIsReadInTheOrderOfNames) {
  const TemporaryFolder folder;
  write_file(folder / "b.txt", "Last words.");
  write_file(folder / "a.txt",
             "The Project.\r\n*** START OF THE BOOK ***\r\nFirst words.\r\n*** END OF THIS BOOK "
             "***\r\nLicence.");
  write_file(folder / "c.md", "No text.");
  EXPECT_THAT(read_prose(folder / "a.txt").sentences, ElementsAre("First words."));
  EXPECT_THAT(read_prose(folder.path()).sentences, ElementsAre("First words.", "Last words."));
}

TEST(MadeProse, RefusesWhatHasNoWords) {
  const TemporaryFolder folder;
  write_file(folder / "empty.txt", " \n");
  EXPECT_ERROR(InputError, read_prose(folder / "empty.txt"), "empty.txt", "words");
  EXPECT_ERROR(InputError, read_prose(folder / "none.txt"), "none.txt");
  std::filesystem::create_directory(folder / "sub");
  EXPECT_ERROR(InputError, read_prose(folder / "sub"), "sub", "*.txt");
}

TEST(MadeWords, ListsAreSortedWithoutRepetitionAndNoCityBeginsAnother) {
  for (const auto list : {english_adjectives(), english_nouns(), english_verbs(), city_names()}) {
    EXPECT_TRUE(std::ranges::is_sorted(list));
    EXPECT_EQ(std::set<std::string_view>(list.begin(), list.end()).size(), list.size());
  }
  const auto cities = city_names();
  for (size_t i = 1; i < cities.size(); ++i)
    EXPECT_FALSE(cities[i].starts_with(cities[i - 1])) << cities[i];
}

TEST(MadeDraws, HaveTheFormOfTheirKind) {
  Rng rng(3);
  const std::pair<DrawKind, const char*> forms[] = {
      {DrawKind::numbers, "[1-9][0-9]{6}"},
      {DrawKind::uuids, "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"},
      {DrawKind::words, "[a-z]+-[a-z]+"},
      {DrawKind::codes, "[a-z]{6}"},
      {DrawKind::variables, "[A-Z]{5}"},
      {DrawKind::variables3, "[A-Z]{3}"}};
  for (const auto& [kind, form] : forms) {
    for (int i = 0; i < 50; ++i) EXPECT_THAT(draw(rng, kind), ::testing::MatchesRegex(form));
  }
}

TEST(MadeDraws, ASubsetHasDifferentNumbersAndAllOfThemIsAPermutation) {
  Rng rng(5);
  std::vector<int64_t> all = draw_subset(rng, 40, 40);
  EXPECT_NE(all, draw_subset(rng, 40, 40));
  std::ranges::sort(all);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<int64_t>(i));
  // Each of 4 is among 2 drawn with probability 1/2: 2000 draws, four standard deviations.
  int64_t third = 0;
  for (int i = 0; i < 2000; ++i) third += std::ranges::count(draw_subset(rng, 4, 2), 2);
  EXPECT_NEAR(static_cast<double>(third), 1000.0, 90.0);
  EXPECT_ERROR(ConfigError, draw_subset(rng, 3, 4), "4", "3");
}

TEST(MadeDraws, DistinctOnesEndWithAnErrorWhenAllAreTaken) {
  Rng rng(1);
  DistinctDraws names(DrawKind::variables3);
  std::set<std::string> drawn;
  const auto take_all = [&] {
    for (int i = 0; i < 20000; ++i) EXPECT_TRUE(drawn.insert(names(rng)).second);
  };
  EXPECT_ERROR(ConfigError, take_all(), "taken");  // there are 17,576
  EXPECT_GT(drawn.size(), 10000u);
}

TEST(MadeDraws, AWordPoolNeverRepeatsAWordAndGoesOnWithPairs) {
  WordPool pool{Rng(2)};
  const std::vector<std::string> words = pool.get(0, 3000);
  EXPECT_EQ(std::set<std::string>(words.begin(), words.end()).size(), 3000u);
  EXPECT_EQ(words[0].find('-'), std::string::npos);
  EXPECT_NE(words[2999].find('-'), std::string::npos);
  EXPECT_EQ(pool.get(10, 5), std::vector<std::string>(words.begin() + 10, words.begin() + 15));
}

TEST(MadeSizes, APromptIsTheLargestThatFits) {
  for (const int64_t unit : {1, 7, 40}) {
    for (const int64_t length : {300, 1000, 5000}) {
      int prompts = 0;
      const SizedPrompt sized =
          largest_prompt(sample_of(length), "test", 20, 0, 1'000'000, [&](int64_t units) {
            ++prompts;
            return std::string(static_cast<size_t>(100 + units * unit), 'a');
          });
      EXPECT_EQ(sized.units, (length - 20 - 1 - 100) / unit) << unit << " " << length;
      EXPECT_EQ(sized.tokens, 1 + 100 + sized.units * unit) << "with the mark of the beginning";
      EXPECT_LE(prompts, 30);
    }
  }
}

TEST(MadeSizes, UnevenUnitsStillFillTheLength) {
  // Every tenth unit is a hundred times as long as the others.
  const auto build = [](int64_t units) {
    return std::string(static_cast<size_t>(units + units / 10 * 100), 'a');
  };
  for (int64_t length = 150; length < 3000; length += 97) {
    const SizedPrompt sized = largest_prompt(sample_of(length), "test", 10, 1, 100'000, build);
    EXPECT_LE(sized.tokens, length - 10);
    EXPECT_GT(count_tokens(*byte_tokenizer(), build(sized.units + 1)), length - 10);
  }
}

TEST(MadeSizes, StopAtTheMostUnitsThereAre) {
  const SizedPrompt sized = largest_prompt(sample_of(10'000), "test", 10, 0, 12, [](int64_t units) {
    return std::string(static_cast<size_t>(units), 'a');
  });
  EXPECT_EQ(sized.units, 12);
}

TEST(MadeSizes, RefuseALengthThatTheSmallestQuestionExceeds) {
  const auto build = [](int64_t units) {
    return std::string(static_cast<size_t>(90 + units), 'a');
  };
  EXPECT_ERROR(ConfigError, largest_prompt(sample_of(100), "needles", 20, 1, 100, build), "needles",
               "92", "20", "100");
  EXPECT_ERROR(ConfigError, check_sample(sample_of(0), "needles"), "needles", "length", "0");
  EXPECT_ERROR(ConfigError, check_sample(sample_of(10, -1), "needles"), "number", "-1");
  MadeSample deep = sample_of(10);
  deep.depth = 1.01;
  EXPECT_ERROR(ConfigError, check_sample(deep, "needles"), "depth", "1.01");
}

}  // namespace
}  // namespace fovea::made_prose_test
