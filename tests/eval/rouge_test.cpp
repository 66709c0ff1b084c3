// ROUGE against the rouge_score package.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/rouge.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "fovea/eval/answer_metric.h"
#include "tests/support/expect_error.h"

namespace fovea::rouge_test {
namespace {

struct Golden {
  std::string_view reference, summary;
  double precision[3], recall[3];  // ROUGE-1, ROUGE-2, ROUGE-L
};

// rouge_score 0.1.2: RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=False).
constexpr Golden kGoldens[] = {
    {"The quick brown fox jumps over the lazy dog.",
     "A quick brown dog jumped over the lazy fox, and the fox slept.",
     {0.615385, 0.25, 0.384615},
     {0.888889, 0.375, 0.555556}},
    {"police killed the gunman",
     "police kill the gunman",
     {0.75, 0.333333, 0.75},
     {0.75, 0.333333, 0.75}},
    {"police killed the gunman",
     "the gunman kill police",
     {0.75, 0.333333, 0.5},
     {0.75, 0.333333, 0.5}},
    {"Don't stop 2 believe; don't!",
     "dont stop believing: 2 do not stop",
     {0.285714, 0.0, 0.285714},
     {0.285714, 0.0, 0.285714}},
    {"In 1901 the first Nobel Prize in Physics was awarded to Wilhelm Conrad R\xC3\xB6ntgen of "
     "Germany.",
     "The Nobel Prize in Physics of 1901 went to R\xC3\xB6ntgen; R\xC3\xB6ntgen came from Germany "
     "in 1901.",
     {0.666667, 0.294118, 0.5},
     {0.705882, 0.3125, 0.529412}}};

TEST(Rouge, EqualsTheReferencePackage) {
  for (const Golden& golden : kGoldens) {
    const RougeScore scores[] = {rouge_n(golden.reference, golden.summary, 1),
                                 rouge_n(golden.reference, golden.summary, 2),
                                 rouge_l(golden.reference, golden.summary)};
    for (size_t k = 0; k < 3; ++k) {
      EXPECT_NEAR(scores[k].precision, golden.precision[k], 1e-6) << golden.summary << " " << k;
      EXPECT_NEAR(scores[k].recall, golden.recall[k], 1e-6) << golden.summary << " " << k;
    }
  }
}

TEST(Rouge, FOneIsTheHarmonicMean) {
  EXPECT_NEAR(rouge_n(kGoldens[0].reference, kGoldens[0].summary, 1).f1(), 0.727273, 1e-6);
  EXPECT_EQ(RougeScore{}.f1(), 0.0);
}

TEST(Rouge, OfATextWithItselfIsOneAndOfNothingIsZero) {
  EXPECT_EQ(rouge_l("One two three", "one, TWO: three!").f1(), 1.0);
  EXPECT_EQ(rouge_n("one two", "one two", 2).f1(), 1.0);
  EXPECT_EQ(rouge_n("one two", "one two", 3).f1(), 0.0);
  EXPECT_EQ(rouge_l("", "words").f1(), 0.0);
  EXPECT_EQ(rouge_l("words", "...").f1(), 0.0);
}

TEST(Rouge, IsAMetricOfATaskWithTheReferenceThatGivesMost) {
  const auto score = [](AnswerRule rule, std::vector<std::string> references) {
    return make_answer_metric({.rule = rule})
        .score({.references = std::move(references)}, "police kill the gunman");
  };
  EXPECT_EQ(score(AnswerRule::rouge_1, {"nobody", "police killed the gunman"}), 0.75);
  EXPECT_NEAR(score(AnswerRule::rouge_2, {"police killed the gunman"}), 1.0 / 3.0, 1e-12);
  EXPECT_EQ(score(AnswerRule::rouge_l, {"the gunman kill police"}), 0.5);
  EXPECT_EQ(score(AnswerRule::rouge_l, {}), 0.0);
  EXPECT_EQ(make_answer_metric({.rule = AnswerRule::rouge_l}).name, "rouge_l");
}

TEST(Rouge, RefusesRunsOfNoWords) { EXPECT_ERROR(ConfigError, rouge_n("a", "a", 0), "0"); }

}  // namespace
}  // namespace fovea::rouge_test
