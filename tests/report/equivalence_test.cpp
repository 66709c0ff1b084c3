// Equivalence tests and Welch's test against SciPy (tests/golden/make_statistics_cases.py), and
// what a comparison says with a margin. Spec E-7.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/equivalence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "fovea/base/files.h"
#include "fovea/report/compare_result.h"
#include "fovea/report/format.h"
#include "fovea/report/html_report.h"
#include "fovea/report/table.h"
#include "tests/support/expect_error.h"

namespace fovea::equivalence_test_cases {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

const Json& golden(const char* key) {
  static const Json json = Json::parse(read_file(FOVEA_SOURCE_DIR "/tests/golden/statistics.json"));
  return json.at(key);
}

TEST(Equivalence, EqualsScipysTwoOneSidedTests) {
  for (const Json& c : golden("equivalence")) {
    const EquivalenceTest test =
        equivalence_test(paired_t_test(c["differences"].get<std::vector<double>>()), c["margin"]);
    EXPECT_NEAR(test.below, c["below"].get<double>(), 1e-10) << c;
    EXPECT_NEAR(test.above, c["above"].get<double>(), 1e-10) << c;
    EXPECT_EQ(test.p(), std::max(test.below, test.above)) << c;
    EXPECT_NEAR(test.interval.low, c["low"].get<double>(), 1e-10) << c;
    EXPECT_NEAR(test.interval.high, c["high"].get<double>(), 1e-10) << c;
    const double margin = c["margin"];
    EXPECT_EQ(test.p() < kSignificance, test.interval.low > -margin && test.interval.high < margin)
        << c;
  }
}

TEST(Equivalence, NoDifferenceSeenIsNoEquality) {
  const PairedTest wide = paired_t_test(std::vector<double>{0.09, -0.07, 0.01});
  EXPECT_GT(wide.p, 0.5);
  EXPECT_GT(equivalence_test(wide, 0.02).p(), kSignificance);
}

TEST(Equivalence, NumbersOfATableGiveTheTestOfTheirSeeds) {
  const std::vector<double> differences{0.012, 0.03, -0.006};
  const PairedTest raw = paired_t_test(differences);
  const PairedTest table = paired_t_test_of(raw.mean, raw.error, 3);
  EXPECT_NEAR(table.p, raw.p, 1e-14);
  EXPECT_NEAR(table.interval.high, raw.interval.high, 1e-14);
  EXPECT_NEAR(table.deviation, raw.deviation, 1e-14);
}

TEST(Equivalence, WelchsTestEqualsScipy) {
  const auto sample = [](const Json& s) {
    return SampleSummary{.mean = s[0], .deviation = s[1], .count = s[2]};
  };
  for (const Json& c : golden("welch")) {
    const PairedTest test = welch_test(sample(c["first"]), sample(c["second"]));
    EXPECT_NEAR(test.t, c["t"].get<double>(), 1e-10) << c;
    EXPECT_NEAR(test.p, c["p"].get<double>(), 1e-10) << c;
  }
}

TEST(Equivalence, WithoutASpreadTheAnswerIsCertain) {
  const PairedTest equal = paired_t_test(std::vector<double>{0.01, 0.01});
  EXPECT_EQ(equivalence_test(equal, 0.02).p(), 0);
  EXPECT_EQ(equivalence_test(equal, 0.005).p(), 1);
  EXPECT_TRUE(std::isnan(equivalence_test(paired_t_test(std::vector<double>{0.01}), 0.02).p()));
}

TEST(Equivalence, TrainingsAddTheirSpreadToThatOfTheQuestions) {
  const auto test = [](double mean, double error) { return paired_t_test_of(mean, error, 400); };
  const std::vector<PairedTest> same(3, test(-0.02, 0.01));
  EXPECT_NEAR(test_over_trainings(same).p, same[0].p, 1e-12) << "trainings without a spread";
  const std::vector<PairedTest> sure{test(-0.02, 0), test(-0.04, 0), test(-0.06, 0)};
  const std::vector<double> means{-0.02, -0.04, -0.06};
  EXPECT_NEAR(test_over_trainings(sure).p, paired_t_test(means).p, 1e-12)
      << "no error of questions";
  const std::vector<PairedTest> both{test(-0.02, 0.01), test(-0.04, 0.02), test(-0.06, 0.03)};
  const PairedTest out = test_over_trainings(both);
  const double questions = 0.02, trainings = 0.02 / std::sqrt(3.0);
  EXPECT_NEAR(out.mean, -0.04, 1e-12);
  EXPECT_NEAR(out.error, std::hypot(questions, trainings), 1e-12);
  EXPECT_NEAR(out.freedom,
              std::pow(out.error, 4) / (std::pow(questions, 4) / 399 + std::pow(trainings, 4) / 2),
              1e-6);
  EXPECT_EQ(out.pairs, 400);
  EXPECT_ERROR(InputError, test_over_trainings({both.data(), 1}), "two trainings or more");
  const std::vector<PairedTest> others{test(0, 0.01), paired_t_test_of(0, 0.01, 300)};
  EXPECT_ERROR(InputError, test_over_trainings(others), "400 and 300");
}

TEST(Equivalence, ImpossibleNumbersAreRefused) {
  const PairedTest test = paired_t_test(std::vector<double>{0.01, 0.02});
  EXPECT_ERROR(InputError, equivalence_test(test, 0), "[statistics]", "margin");
  EXPECT_ERROR(InputError, paired_t_test_of(0.1, 0.1, 1), "2 pairs");
  EXPECT_ERROR(InputError, welch_test({1, 0, 3}, {2, 0, 3}), "without one");
}

/// Three variants: a clear loss, level within `spread`, and the reference.
CompareResult comparison(double spread, double margin) {
  CompareResult result;
  result.reference = "standard";
  result.equivalence_margin = margin;
  const double noise[] = {0.4, -1.0, 0.7, -0.2, 0.1};
  for (const auto& [name, by] :
       {std::pair("standard", 0.0), std::pair("level", 0.001), std::pair("bad", 0.5)}) {
    CompareVariant& variant = result.variants.emplace_back();
    variant.name = name;
    for (int64_t seed = 0; seed < 5; ++seed) {
      const double own = by == 0 ? 0 : by + spread * noise[seed];
      variant.runs.push_back(
          {.seed = seed,
           .validation_bits_per_byte = 2 + 0.01 * static_cast<double>(seed) + own,
           .validation_perplexity = 4});
    }
  }
  summarise(result);
  return result;
}

TEST(Equivalence, AVariantIsAsGoodOnlyInsideAStatedMargin) {
  EXPECT_EQ(comparison(0.005, 0.02).variants[1].summary.verdict, Verdict::equivalent);
  EXPECT_EQ(comparison(0.005, 0).variants[1].summary.verdict, Verdict::inside_spread);
  EXPECT_EQ(comparison(0.05, 0.02).variants[1].summary.verdict, Verdict::inside_spread);
  EXPECT_EQ(comparison(0.005, 0.02).variants[2].summary.verdict, Verdict::worse);
  EXPECT_TRUE(std::isnan(comparison(0.005, 0).variants[1].summary.equivalence_p));
}

TEST(Equivalence, TableAnswerPageAndFileSayAsGoodWithTheMargin) {
  const CompareResult result = comparison(0.005, 0.02);
  EXPECT_THAT(compare_table(result, 0), HasSubstr("as good"));
  EXPECT_THAT(compare_table(result, 0), HasSubstr("margin of 0.02 bits per byte"));
  EXPECT_THAT(html_report(result), HasSubstr("= as good"));
  bool said = false;
  for (const Finding& finding : compare_answer(result).findings)
    said = said || (finding.kind == Finding::Kind::same &&
                    finding.text.starts_with("level is as good as standard within 0.02"));
  EXPECT_TRUE(said);
  const auto file = to_json(result);
  EXPECT_EQ(file["equivalence_margin"], 0.02);
  EXPECT_EQ(file["variants"][1]["summary"]["verdict"], "as good");
  EXPECT_LT(file["variants"][1]["summary"]["equivalence_p"], 0.05);
  const CompareResult again = compare_result_from_json(file);
  EXPECT_EQ(again.equivalence_margin, 0.02);
  EXPECT_EQ(again.variants[1].summary.verdict, Verdict::equivalent);
}

TEST(Equivalence, WithoutAMarginNothingIsSaidOfIt) {
  const CompareResult result = comparison(0.005, 0);
  EXPECT_THAT(compare_table(result, 0), ::testing::Not(HasSubstr("as good")));
  EXPECT_FALSE(to_json(result).contains("equivalence_margin"));
}

}  // namespace
}  // namespace fovea::equivalence_test_cases
