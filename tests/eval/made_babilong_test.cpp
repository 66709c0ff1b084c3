// bAbI files and BABILong (spec 9.7).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/made/babilong.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "fovea/base/files.h"
#include "tests/support/expect_error.h"
#include "tests/support/made_questions.h"
#include "tests/support/temporary_folder.h"

namespace fovea::made_babilong_test {
namespace {

using namespace fovea::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kStories =
    "1 John went to the hallway.\n2 Mary went to the office.\n3 Where is John? \thallway\t1\n"
    "4 John went to the garden.\n5 Where is John?\tgarden\t4\n"
    "1 Bill took the milk.\n2 Where is Bill?\tkitchen\t1\n";

TEST(Babi, AStoryIsCutIntoOneSampleAQuestionWithoutEarlierQuestions) {
  const auto samples = parse_babi(kStories, "qa1.txt");
  ASSERT_EQ(samples.size(), 3u);
  EXPECT_THAT(samples[0].facts,
              ElementsAre("John went to the hallway.", "Mary went to the office."));
  EXPECT_EQ(samples[0].question, "Where is John?");
  EXPECT_EQ(samples[0].answer, "hallway");
  EXPECT_THAT(samples[1].facts, ElementsAre("John went to the hallway.", "Mary went to the office.",
                                            "John went to the garden."));
  EXPECT_EQ(samples[1].answer, "garden");
  EXPECT_THAT(samples[2].facts, ElementsAre("Bill took the milk."));
}

TEST(Babi, LineEndsOfOtherSystemsAndEmptyLinesMeanNothing) {
  std::string crlf;
  for (const char c : kStories) crlf += c == '\n' ? std::string("\r\n\r\n") : std::string(1, c);
  const auto samples = parse_babi(crlf, "qa1.txt");
  ASSERT_EQ(samples.size(), 3u);
  EXPECT_EQ(samples[2].answer, "kitchen");
}

TEST(Babi, ErrorsNameTheLine) {
  EXPECT_ERROR(InputError, parse_babi("1 A b.\nC d.\n", "qa.txt"), "qa.txt:2", "'C d.'");
  EXPECT_ERROR(InputError, parse_babi("1 A b.\n3 C d.\n", "qa.txt"), "qa.txt:2", "line 2", "3");
  EXPECT_ERROR(InputError, parse_babi("2 A b.\n", "qa.txt"), "qa.txt:1");
  EXPECT_ERROR(InputError, parse_babi("1 A b.\n2 Where?\t\t1\n", "qa.txt"), "qa.txt:2", "answer");
  EXPECT_ERROR(InputError, parse_babi("1 Where?\there\t1\n", "qa.txt"), "qa.txt:1", "facts");
  EXPECT_ERROR(InputError, parse_babi("1 \n", "qa.txt"), "qa.txt:1", "sentence");
  EXPECT_ERROR(InputError, parse_babi("99999999999999999999 A.\n", "qa.txt"), "qa.txt:1");
  EXPECT_ERROR(InputError, parse_babi("1 A b.\n", "qa.txt"), "qa.txt", "questions");
  EXPECT_ERROR(InputError, parse_babi("", "qa.txt"), "qa.txt");
}

TEST(Babi, FilesAreFoundInTheFolderOrItsLanguages) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "en");
  write_file(folder / "en" / "qa1_single-supporting-fact_test.txt", std::string(kStories));
  EXPECT_EQ(read_babi(find_babi(folder.path(), 1, "test")).size(), 3u);
  EXPECT_EQ(find_babi(folder / "en", 1, "test"), find_babi(folder.path(), 1, "test"));
  EXPECT_ERROR(InputError, find_babi(folder.path(), 1, "train"), "qa1_", "_train.txt");
  EXPECT_ERROR(InputError, find_babi(folder.path(), 10, "test"), "qa10_");
}

class Babilong : public ::testing::Test {
 protected:
  BabilongTask task_{.task = 1,
                     .samples = parse_babi(kStories, "test.txt"),
                     .examples = parse_babi(kStories, "train.txt")};
  Prose noise_ = noise_of(built_in_prose(), *byte_tokenizer());
};

TEST_F(Babilong, FactsStandInTheirOrderBetweenWholeSentencesOfTheNoise) {
  for (int64_t number = 0; number < 20; ++number) {
    const TaskItem item = babilong_question(task_, sample_of(3000, number), noise_);
    expect_full(item.context, 3000, kBabilongAnswerTokens, 20);
    const std::string text = between(item.context, "<context>\n", "\n</context>");
    const BabiSample& story = task_.samples[static_cast<size_t>(number % 3)];
    size_t at = 0;
    for (const std::string& fact : story.facts) {
      ASSERT_EQ(occurrences(text, fact), 1) << fact;
      const size_t place = text.find(fact);
      EXPECT_GE(place, at);
      at = place + fact.size();
      EXPECT_TRUE(place == 0 || text[place - 1] == ' ');
      EXPECT_TRUE(place < 2 || text[place - 2] == '.' || text[place - 2] == '?' ||
                  place + fact.size() == text.size())
          << "a fact stands behind the end of a sentence";
    }
    EXPECT_THAT(item.references, ElementsAre(story.answer));
    EXPECT_TRUE(item.context.ends_with("Question: " + story.question + "\nAnswer:"));
  }
}

TEST_F(Babilong, AZeroLengthIsTheFactsAlone) {
  const TaskItem item = babilong_question(task_, sample_of(0, 1), noise_);
  EXPECT_EQ(between(item.context, "<context>\n", "\n</context>"),
            "John went to the hallway. Mary went to the office. John went to the garden.");
  EXPECT_EQ(item.axes.at("length"), 0.0);
}

TEST_F(Babilong, ExamplesAreSolvedAndAsManyAsTheShots) {
  for (const int64_t shots : {0, 2, 3}) {
    task_.shots = shots;
    const TaskItem item = babilong_question(task_, sample_of(3000), noise_);
    EXPECT_EQ(occurrences(item.context, "<example>"), shots);
    EXPECT_EQ(occurrences(item.context, "\nAnswer: "), shots);
  }
}

TEST_F(Babilong, ExamplesAreShortWhereThereAreShortOnes) {
  task_.examples.push_back({.facts = std::vector<std::string>(30, "Nothing happened."),
                            .question = "Where is it?",
                            .answer = "office"});
  for (int64_t number = 0; number < 20; ++number)
    EXPECT_EQ(occurrences(babilong_question(task_, sample_of(3000, number), noise_).context,
                          "Nothing happened."),
              0);
}

TEST_F(Babilong, StoriesKeepToHalfOfTheLength) {
  const auto kept = samples_for(task_.samples, *byte_tokenizer(), 100);
  ASSERT_EQ(kept.size(), 2u) << "48, 72 and 19 bytes of facts";
  EXPECT_EQ(kept[1].answer, "kitchen");
  EXPECT_EQ(samples_for(task_.samples, *byte_tokenizer(), 0).size(), 3u);
  EXPECT_ERROR(ConfigError, samples_for(task_.samples, *byte_tokenizer(), 30), "30", "3 stories");
}

TEST_F(Babilong, ShortSentencesAreNoNoise) {
  const Prose prose = make_prose("mixed", "Too short. This sentence has quite enough tokens. No.");
  EXPECT_THAT(noise_of(prose, *byte_tokenizer()).sentences,
              ElementsAre("Too short.", "This sentence has quite enough tokens."));
  EXPECT_ERROR(InputError, noise_of(make_prose("tiny", "No. Yes."), *byte_tokenizer()), "tiny",
               "10");
}

TEST_F(Babilong, EqualSeedsGiveEqualBytesAndOthersDiffer) {
  const auto question = [&](int64_t number, uint64_t seed) {
    return babilong_question(task_, sample_of(3000, number, seed), noise_).context;
  };
  EXPECT_EQ(question(1, 7), question(1, 7));
  EXPECT_NE(question(1, 7), question(4, 7)) << "the same story elsewhere";
  EXPECT_NE(question(1, 7), question(1, 8));
}

TEST_F(Babilong, RefusesWhatCannotBeAsked) {
  EXPECT_ERROR(ConfigError, babilong_question(task_, sample_of(100), noise_), "babilong_qa1",
               "100");
  EXPECT_ERROR(ConfigError, babilong_question(task_, sample_of(-5), noise_), "-5");
  task_.shots = 9;
  EXPECT_ERROR(ConfigError, babilong_question(task_, sample_of(3000), noise_), "9 shots");
  task_.task = 6;
  EXPECT_ERROR(ConfigError, babilong_question(task_, sample_of(3000), noise_), "1 to 5", "6");
}

TEST(BabilongScore, IsRightWhereOneLabelAloneIsNamedAndItIsTheTarget) {
  const auto rooms = babilong_labels(1);
  const auto score = [&](std::string_view output, std::string_view question = "Where is John?") {
    return babilong_score(output, "hallway", question, rooms);
  };
  EXPECT_EQ(score(" The most recent location of John is Hallway. Then the garden."), 1.0);
  EXPECT_EQ(score("hallway"), 1.0);
  EXPECT_EQ(score("hallway or garden"), 0.0) << "two labels";
  EXPECT_EQ(score("garden"), 0.0);
  EXPECT_EQ(score("He left. hallway"), 0.0) << "only the first sentence counts";
  EXPECT_EQ(score("hallway <example> garden"), 1.0);
  EXPECT_EQ(score("the kitchen was before the hallway", "Where was he before the kitchen?"), 1.0)
      << "labels of the question do not count";
  EXPECT_EQ(score(""), 0.0);
}

TEST(BabilongScore, OfTaskFiveNamesPeopleAndThings) {
  const auto labels = babilong_labels(5);
  EXPECT_EQ(labels.size(), 7u);
  EXPECT_EQ(babilong_score("JEFF gave it", "Jeff", "Who gave the milk to Fred?", labels), 1.0);
  EXPECT_EQ(babilong_score("Jeff and Bill", "Jeff", "Who gave the milk?", labels), 0.0);
  EXPECT_ERROR(ConfigError, babilong_labels(0), "1 to 5", "0");
}

}  // namespace
}  // namespace fovea::made_babilong_test
