// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/answer_metric.h"

#include <gtest/gtest.h>

#include "fovea/eval/task_list.h"

namespace fovea::answer_metric_test {
namespace {

double score(const AnswerMetricSettings& settings, std::vector<std::string> references,
             std::string_view answer) {
  return make_answer_metric(settings).score({.references = std::move(references)}, answer);
}

/// The metric of a known task.
double score(const std::string& task, const std::string& metric, const std::string& reference,
             std::string_view answer) {
  for (const AnswerMetric& m : find_task(task).metrics) {
    if (m.name == metric) return m.score({.references = {reference}}, answer);
  }
  ADD_FAILURE() << task << " has no metric " << metric;
  return -1.0;
}

TEST(AnswerMetric, StrictGsm8kReadsTheSentenceAndFlexibleTheLastNumber) {
  constexpr const char *strict = "exact_match_strict", *flexible = "exact_match_flexible";
  EXPECT_EQ(score("gsm8k_cot", strict, "18", "9 * 2 = 18. The answer is 18."), 1.0);
  EXPECT_EQ(score("gsm8k_cot", strict, "18", "The answer is 18. The answer is 9."), 1.0);
  EXPECT_EQ(score("gsm8k_cot", flexible, "18", "The answer is 18. The answer is 9."), 0.0);
  EXPECT_EQ(score("gsm8k_cot", strict, "1,800", "The answer is 1800.\n"), 1.0);
  EXPECT_EQ(score("gsm8k_cot", flexible, "1800", "so she pays $1,800."), 1.0);
  // The final `.` of the pattern takes a character: an answer at the very end loses its last digit.
  EXPECT_EQ(score("gsm8k_cot", strict, "18", "The answer is 18"), 0.0);
  EXPECT_EQ(score("gsm8k_cot", strict, "1", "The answer is 18"), 1.0);
  EXPECT_EQ(score("gsm8k_cot", strict, "18", "It is 18."), 0.0);
  EXPECT_EQ(score("gsm8k", strict, "9 * 2 = 18\n#### 18", "so\n#### 18"), 1.0);
  EXPECT_EQ(score("gsm8k", strict, "9 * 2 = 18\n#### 18", "so 18"), 0.0);
  EXPECT_EQ(score("gsm8k", flexible, "9 * 2 = 18\n#### 18", "so 18"), 1.0);
}

TEST(AnswerMetric, ContainmentIsOfOneReferenceOrTheShareOfAll) {
  const AnswerMetricSettings any{.rule = AnswerRule::contains_any, .ignore_case = true};
  const AnswerMetricSettings all{.rule = AnswerRule::contains_all, .ignore_case = true};
  EXPECT_EQ(score(any, {"Paris", "Lyon"}, "it is PARIS."), 1.0);
  EXPECT_EQ(score(any, {"Paris", "Lyon"}, "it is Rome."), 0.0);
  EXPECT_EQ(score(all, {"Paris", "Lyon"}, "it is PARIS."), 0.5);
  EXPECT_EQ(score(all, {"Paris", "Lyon"}, "lyon, paris"), 1.0);
}

TEST(AnswerMetric, NormalisedAnswersLoseCasePunctuationAndArticles) {
  EXPECT_EQ(normalised_answer("  The  U.S.A., an idea!\n"), "usa idea");
  EXPECT_EQ(score({.normalise = true}, {"Eiffel Tower"}, " the Eiffel tower."), 1.0);
  EXPECT_EQ(score({.normalise = true}, {"Eiffel Tower"}, "Eiffel"), 0.0);
}

TEST(AnswerMetric, WithoutAMatchThereIsNoAnswer) {
  EXPECT_EQ(score({.pattern = "[0-9]+"}, {"[invalid]"}, "none"), 1.0);
  EXPECT_EQ(score({.pattern = "a(b)?(c)"}, {"c"}, "ac"), 1.0);  // the first group that took part
}

}  // namespace
}  // namespace fovea::answer_metric_test
