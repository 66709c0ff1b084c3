// Needles: what is hidden, where it stands, and what is asked (spec 9.4, 9.8, 13.20).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/made/needles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "fovea/eval/made/multi_needle.h"
#include "tests/support/expect_error.h"
#include "tests/support/made_questions.h"

namespace fovea::made_needles_test {
namespace {

using namespace fovea::testing;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const NeedleTask& task_of(std::string_view name) {
  for (const NeedleTask& task : needle_tasks()) {
    if (task.name == name) return task;
  }
  throw std::out_of_range("no such task");
}

class Needles : public ::testing::TestWithParam<std::string_view> {
 protected:
  const NeedleTask& task_ = task_of(GetParam());
  static constexpr int64_t kLength = 4000;
  TaskItem question(int64_t number, uint64_t seed = 7) const {
    return needle_question(task_, sample_of(kLength, number, seed), built_in_prose());
  }
  /// The text that things are hidden in.
  static std::string haystack(const TaskItem& item) {
    return between(item.context, "afterwards.\n", "\nWhat ");
  }
};
INSTANTIATE_TEST_SUITE_P(All, Needles,
                         ::testing::Values("niah_single_1", "niah_single_2", "niah_single_3",
                                           "niah_multikey_1", "niah_multikey_2", "niah_multikey_3",
                                           "niah_multivalue", "niah_multiquery"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(Needles, FillTheLengthToWithinAUnit) {
  const int64_t unit = task_.haystack == NeedleTask::Haystack::prose ? 20 : 140;  // a word, a line
  for (int64_t number = 0; number < 6; ++number)
    expect_full(question(number).context, kLength, kNeedleAnswerTokens, unit);
}

TEST_P(Needles, EveryAnswerStandsInTheTextOnceBehindAKeyThatIsAsked) {
  for (int64_t number = 0; number < 10; ++number) {
    const TaskItem item = question(number);
    ASSERT_EQ(std::ssize(item.references), task_.answers());
    const std::string text = haystack(item),
                      asked = item.context.substr(item.context.rfind("\nWhat "));
    for (const std::string& answer : item.references) {
      EXPECT_EQ(occurrences(text, answer), 1) << answer;
      const size_t end = text.find(" is: " + answer + ".");
      ASSERT_NE(end, std::string::npos);
      const size_t begin = text.rfind(" for ", end) + 5;
      EXPECT_THAT(asked, HasSubstr(text.substr(begin, end - begin)));
      EXPECT_EQ(occurrences(text, text.substr(begin, end - begin) + " is: "), task_.values);
    }
  }
}

TEST_P(Needles, AreAsManyAsTheTaskSaysAndNoKeyHasTwoAnswersMore) {
  const TaskItem item = question(3);
  const std::string text = haystack(item);
  std::map<std::string, int> keys;
  std::set<std::string> values;
  int64_t needles = 0;
  for (size_t at = text.find("One of the special magic "); at != std::string::npos;
       at = text.find("One of the special magic ", at + 1), ++needles) {
    const size_t key = text.find(" for ", at) + 5, is = text.find(" is: ", key);
    ++keys[text.substr(key, is - key)];
    values.insert(text.substr(is + 5, text.find('.', is) - is - 5));
  }
  if (task_.haystack == NeedleTask::Haystack::needles) {
    EXPECT_GT(needles, 20);
  } else {
    EXPECT_EQ(needles, task_.keys * task_.values);
  }
  EXPECT_EQ(std::ssize(values), needles);
  for (const auto& [key, count] : keys) EXPECT_EQ(count, task_.values) << key;
}

TEST_P(Needles, EqualSeedsGiveEqualBytesAndOthersDiffer) {
  EXPECT_EQ(question(2).context, question(2).context);
  EXPECT_NE(question(2).context, question(3).context);
  EXPECT_NE(question(2).context, question(2, 8).context);
}

TEST_P(Needles, StandAtTheDepthAsked) {
  for (const double depth : {0.0, 0.1, 0.5, 0.77, 1.0}) {
    MadeSample sample = sample_of(kLength, 5);
    sample.depth = depth;
    const TaskItem item = needle_question(task_, sample, built_in_prose());
    EXPECT_DOUBLE_EQ(item.axes.at("depth"), depth);
    const std::string text = haystack(item);
    // Of several values of one key, one of them stands there.
    double nearest = 2.0;
    const size_t same_key = task_.queries > 1 ? 1 : item.references.size();
    for (size_t i = 0; i < same_key; ++i) {
      const double place =
          static_cast<double>(text.find(item.references[i])) / static_cast<double>(text.size());
      nearest = std::min(nearest, std::abs(place - depth));
    }
    EXPECT_LT(nearest, 0.1);
  }
}

TEST_P(Needles, TheirDepthsAreForty) {
  std::set<double> depths;
  for (int64_t number = 0; number < 60; ++number) {
    const double depth = question(number).axes.at("depth");
    depths.insert(depth);
    EXPECT_NEAR(depth, std::round(std::round(depth * 39.0) / 39.0 * 100.0) / 100.0, 1e-12);
  }
  EXPECT_GT(depths.size(), 15u);
}

TEST_P(Needles, RefuseALengthWithoutRoom) {
  EXPECT_ERROR(ConfigError, needle_question(task_, sample_of(200), built_in_prose()),
               std::string(task_.name), "length", "200");
}

TEST(NeedleDepth, IsTheSentenceBelowItInRULERsCount) {
  // 13.20: index floor(sentences * depth / 100).
  const Prose prose = make_prose("letters", "A a. B b. C c. D d. E e. F f. G g. H h. I i. J j.");
  for (int64_t number = 0; number < 60; ++number) {
    const TaskItem item = needle_question(task_of("niah_single_2"), sample_of(1200, number), prose);
    const std::string text = between(item.context, "afterwards.\n", "\nWhat "),
                      end = item.references.front() + ".";
    const std::string before = text.substr(0, text.find("One of the special")),
                      after = text.substr(text.find(end) + end.size());
    const double depth = item.axes.at("depth");
    const auto index = std::ssize(split_sentences(before)),
               sentences = index + std::ssize(split_sentences(after));
    EXPECT_EQ(index,
              static_cast<int64_t>(std::floor(depth * static_cast<double>(sentences) + 1e-9)))
        << depth << " of " << sentences;
  }
}

TEST(NeedlePrompt, IsRULERsForOneAnswerAndForSeveral) {
  const TaskItem one = needle_question(task_of("niah_single_3"), sample_of(2000), built_in_prose());
  EXPECT_THAT(one.context,
              StartsWith("A special magic uuid is hidden within the following text. Make sure to "
                         "memorize it. I will quiz you about the uuid afterwards.\n"));
  const std::string key = between(one.context, "\nWhat is the special magic uuid for ",
                                  " mentioned in the provided text?");
  EXPECT_TRUE(one.context.ends_with(" mentioned in the provided text? The special magic uuid for " +
                                    key + " mentioned in the provided text is"));
  EXPECT_THAT(one.context, HasSubstr("One of the special magic uuids for " + key +
                                     " is: " + one.references.front() + "."));
  const TaskItem many =
      needle_question(task_of("niah_multiquery"), sample_of(2000), built_in_prose());
  EXPECT_THAT(many.context,
              StartsWith("Some special magic numbers are hidden within the following text."));
  const std::string keys = between(many.context, "\nWhat are all the special magic numbers for ",
                                   " mentioned in the provided text?");
  EXPECT_EQ(occurrences(keys, ", "), 3);
  EXPECT_EQ(occurrences(keys, ", and "), 1);
  EXPECT_TRUE(many.context.ends_with(keys + " mentioned in the provided text are"));
}

TEST(NeedlesOfALength, AreThoseOfAnotherLength) {
  const NeedleTask& task = task_of("niah_multikey_1");
  const TaskItem small = needle_question(task, sample_of(2000, 4), built_in_prose()),
                 large = needle_question(task, sample_of(6000, 4), built_in_prose());
  EXPECT_EQ(small.references, large.references);
  EXPECT_EQ(small.axes.at("depth"), large.axes.at("depth"));
  EXPECT_NE(small.axes.at("length"), large.axes.at("length"));
}

TEST(MultiNeedle, HidesDifferentCitiesAndNumbersAndAsksForOne) {
  for (const int64_t needles : {2, 4, 6}) {
    std::set<size_t> asked_places;
    for (int64_t number = 0; number < 20; ++number) {
      const TaskItem item =
          multi_needle_question(needles, sample_of(2000, number), built_in_prose());
      expect_full(item.context, 2000, kMultiNeedleAnswerTokens, 20);
      const size_t question = item.context.rfind("\n");
      const std::string text = item.context.substr(0, question),
                        asked = item.context.substr(question + 1);
      EXPECT_EQ(occurrences(text, "The magic number of "), needles);
      EXPECT_EQ(occurrences(text, asked + " " + item.references.front() + "."), 1) << asked;
      std::set<std::string> numbers;
      size_t place = 0, k = 0;
      for (size_t at = text.find("The magic number of "); at != std::string::npos;
           at = text.find("The magic number of ", at + 1), ++k) {
        const std::string line = text.substr(at, text.find('.', at) - at);
        numbers.insert(line.substr(line.find(" is ") + 4));
        if (line.starts_with(asked)) place = k;
      }
      EXPECT_EQ(std::ssize(numbers), needles);
      asked_places.insert(place);
    }
    EXPECT_EQ(std::ssize(asked_places), needles) << "each of them is asked now and then";
  }
}

TEST(MultiNeedle, StandsAtEqualStepsBehindTheFirst) {
  for (const double depth : {0.0, 0.5, 1.0}) {
    MadeSample sample = sample_of(8000, 3);
    sample.depth = depth;
    const TaskItem item = multi_needle_question(4, sample, built_in_prose());
    const std::string text = item.context.substr(0, item.context.rfind("\n"));
    double k = 0.0;
    for (size_t at = text.find("The magic number of "); at != std::string::npos;
         at = text.find("The magic number of ", at + 1), ++k)
      EXPECT_NEAR(static_cast<double>(at) / static_cast<double>(text.size()),
                  depth + k * (1.0 - depth) / 4.0, 0.05);
  }
}

TEST(MultiNeedle, TakesTenDepthsInTurn) {
  std::set<double> depths;
  for (int64_t number = 0; number < 10; ++number)
    depths.insert(
        multi_needle_question(2, sample_of(1000, number), built_in_prose()).axes.at("depth"));
  EXPECT_EQ(depths.size(), 10u);
  EXPECT_EQ(*depths.begin(), 0.0);
  EXPECT_EQ(*depths.rbegin(), 1.0);
}

TEST(MultiNeedle, RefusesNoNeedleAndTooMany) {
  EXPECT_ERROR(ConfigError, multi_needle_question(0, sample_of(1000), built_in_prose()), "needles",
               "0");
  EXPECT_ERROR(ConfigError, multi_needle_question(21, sample_of(9000), built_in_prose()), "21");
}

}  // namespace
}  // namespace fovea::made_needles_test
