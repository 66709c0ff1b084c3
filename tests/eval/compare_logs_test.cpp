// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/compare_logs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "tests/support/expect_error.h"

namespace fovea::compare_logs_test {
namespace {

ItemLog log_of(const std::vector<double>& scores, int first = 0, const char* metric = "acc") {
  ItemLog log;
  for (size_t i = 0; i < scores.size(); ++i)
    log.records.push_back({.score = {.index = static_cast<int64_t>(i),
                                     .group = "",
                                     .axes = {},
                                     .values = {{metric, scores[i]}}},
                           .question = fmt::format("question {}", static_cast<int>(i) + first)});
  return log;
}

TEST(CompareLogs, PairsQuestionsByTheirFingerprint) {
  const ItemLog first = log_of({1, 1, 1, 0, 1, 0});
  const ItemLog second = log_of({0, 0, 1, 1, 1}, 1);  // questions 1 ... 5
  const LogComparison c = compare_logs(first, second, "task", "acc");
  EXPECT_EQ(c.pairs.items, 5);
  EXPECT_EQ(c.only_in_first, 1);
  EXPECT_EQ(c.only_in_second, 0);
  ASSERT_TRUE(c.pairs.mcnemar);
  EXPECT_EQ(c.pairs.mcnemar->only_first, 2);   // questions 1, 2
  EXPECT_EQ(c.pairs.mcnemar->only_second, 2);  // questions 3, 5
  EXPECT_DOUBLE_EQ(c.pairs.test.mean, 0.0);
  EXPECT_EQ(c.to_json()["mcnemar"]["only_first"], 2);
}

TEST(CompareLogs, LeavesOutWhatOneModelCouldNotBeAsked) {
  ItemLog first = log_of({1, 0, 1});
  first.records[2].refused = "longer than the context";
  const LogComparison c = compare_logs(first, log_of({0, 0, 1}), "task", "acc");
  EXPECT_EQ(c.pairs.items, 2);
  EXPECT_DOUBLE_EQ(c.pairs.test.mean, 0.5);
}

TEST(CompareLogs, TakesNatsWhereQuestionsHaveNoHeadline) {
  const LogComparison c = compare_logs(log_of({2.5, 3.5}, 0, "nll"), log_of({2.0, 2.0}, 0, "nll"),
                                       "task", "word_perplexity");
  EXPECT_EQ(c.metric, "nll");
  EXPECT_DOUBLE_EQ(c.pairs.test.mean, 1.0);
  EXPECT_FALSE(c.pairs.mcnemar);
}

TEST(CompareLogs, RefusesLogsWithoutACommonQuestion) {
  EXPECT_ERROR(InputError, compare_logs(log_of({1, 0}), log_of({1, 0}, 9), "mine", "acc"), "mine",
               "none in common");
}

TEST(CompareLogs, HolmCorrectsOverTheTasks) {
  std::vector<LogComparison> both{compare_logs(log_of(std::vector<double>(12, 1.0)),
                                               log_of(std::vector<double>(12, 0.0)), "a", "acc"),
                                  compare_logs(log_of({1, 0}), log_of({0, 1}), "b", "acc")};
  const double p = both[0].pairs.p();
  correct_by_holm(both);
  EXPECT_DOUBLE_EQ(both[0].corrected_p, 2.0 * p);
  EXPECT_DOUBLE_EQ(both[1].corrected_p, 1.0);
}

TEST(CompareLogs, TheMeanOverTasksWeighsEachTaskTheSame) {
  const std::vector<double> wrong(12, 0.0);
  std::vector<double> half = wrong;
  for (size_t i = 0; i < half.size(); i += 2) half[i] = 1;
  std::vector<LogComparison> both{
      compare_logs(log_of(half), log_of(wrong), "a", "acc"),
      compare_logs(log_of({1, 0, 1, 1}), log_of({1, 0, 1, 1}), "b", "acc")};
  const std::optional<TaskMean> mean = mean_over_tasks(both);
  ASSERT_TRUE(mean);
  EXPECT_DOUBLE_EQ(mean->first, (0.5 + 0.75) / 2);
  EXPECT_DOUBLE_EQ(mean->second, 0.75 / 2);
  EXPECT_DOUBLE_EQ(mean->test.mean, 0.25);
  EXPECT_DOUBLE_EQ(mean->test.error, both[0].pairs.test.error / 2);
  EXPECT_EQ(mean->to_json()["questions"], 16);
  EXPECT_FALSE(mean_over_tasks(std::span(both).first(1)));
  both[1].metric = "nll";
  EXPECT_FALSE(mean_over_tasks(both)) << "nats are not averaged with shares";
}

}  // namespace
}  // namespace fovea::compare_logs_test
