// Tests and intervals against SciPy and statsmodels (tests/golden/make_statistics_cases.py),
// against enumeration, and against how often they err on simulated data. Spec E-7, 9.1.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/rng.h"
#include "fovea/report/student_t.h"
#include "tests/support/expect_error.h"

namespace fovea::statistics_test {
namespace {

using Json = nlohmann::json;
using Numbers = std::vector<double>;

const Json& golden(const char* key) {
  static const Json json = Json::parse(read_file(FOVEA_SOURCE_DIR "/tests/golden/statistics.json"));
  return json.at(key);
}

/// 1e-10 of the larger of 1 and the value; tails must agree to 1e-9 of themselves.
void expect_close(double got, double expected, const std::string& what) {
  EXPECT_NEAR(got, expected, 1e-10 * std::max(1.0, std::abs(expected))) << what;
  if (expected != 0) {
    EXPECT_NEAR(got / expected, 1, 1e-8) << what;
  }
}

Numbers normal_numbers(Rng& rng, size_t count, double mean = 0) {
  Numbers out(count);
  for (double& value : out) value = mean + rng.normal();
  return out;
}

TEST(StudentT, EqualsScipyFromTheMiddleToFarTails) {
  for (const Json& c : golden("incomplete_beta"))
    expect_close(incomplete_beta(c[0], c[1], c[2]), c[3], "I_x(a, b) " + c.dump());
  for (const Json& c : golden("student_t_cdf"))
    expect_close(student_t_cdf(c[0], c[1]), c[2], "cdf " + c.dump());
  for (const Json& c : golden("student_t_two_sided"))
    expect_close(student_t_two_sided(c[0], c[1]), c[2], "two-sided " + c.dump());
  for (const Json& c : golden("student_t_quantile"))
    expect_close(student_t_quantile(c[0], c[1]), c[2], "quantile " + c.dump());
  for (const Json& c : golden("noncentral_t_cdf"))
    EXPECT_NEAR(noncentral_t_cdf(c[0], c[1], c[2]), c[3].get<double>(), 1e-10) << c;
}

TEST(StudentT, TheQuantileOfTheDistributionAtTIsT) {
  for (const double freedom : {1.0, 2.0, 7.0, 400.0}) {
    for (const double t : {-9.0, -0.3, 0.01, 1.7, 15.0}) {
      const double p = student_t_cdf(t, freedom);
      if (p < 1 - 1e-9) {
        EXPECT_NEAR(student_t_quantile(p, freedom), t, 1e-6 * std::abs(t)) << t << " " << freedom;
      }
    }
  }
}

TEST(StudentT, ArgumentsOutsideTheDomainAreRefused) {
  EXPECT_ERROR(InputError, student_t_cdf(1, 0), "[statistics]", "two pairs");
  EXPECT_ERROR(InputError, student_t_cdf(NAN, 3), "NaN");
  EXPECT_ERROR(InputError, student_t_quantile(1, 3), "between 0 and 1");
  EXPECT_ERROR(InputError, incomplete_beta(1, 1, 1.5), "1.5");
  EXPECT_ERROR(InputError, noncentral_t_cdf(1, 3, 40), "37");
  EXPECT_EQ(student_t_cdf(INFINITY, 2), 1);
  EXPECT_EQ(student_t_cdf(-INFINITY, 2), 0);
}

TEST(PairedTest, EqualsScipy) {
  for (const Json& c : golden("t_tests")) {
    const PairedTest test = paired_t_test(c["differences"].get<Numbers>());
    expect_close(test.mean, c["mean"], c.dump());
    expect_close(test.error, c["error"], c.dump());
    expect_close(test.t, c["t"], c.dump());
    expect_close(test.p, c["p"], c.dump());
    expect_close(test.interval.low, c["low"], c.dump());
    expect_close(test.interval.high, c["high"], c.dump());
  }
}

TEST(PairedTest, PIsFivePercentWhereTheIntervalTouchesZero) {
  Numbers differences = {0.3, -0.1, 0.2, 0.25, -0.05};
  const double low = paired_t_test(differences).interval.low;
  for (double& d : differences) d -= low;
  EXPECT_NEAR(paired_t_test(differences).p, 0.05, 1e-12);
}

TEST(PairedTest, TooFewPairsGiveNoPAndNoSpreadIsTheLimit) {
  EXPECT_TRUE(std::isnan(paired_t_test({}).mean));
  const PairedTest one = paired_t_test(Numbers({-0.5}));
  EXPECT_EQ(one.mean, -0.5);
  EXPECT_TRUE(std::isnan(one.p) && std::isnan(one.interval.low));
  EXPECT_EQ(paired_t_test(Numbers({0.25, 0.25, 0.25})).p, 0);
  EXPECT_EQ(paired_t_test(Numbers({0, 0, 0})).p, 1);
  EXPECT_ERROR(InputError, paired_t_test(Numbers({1, NAN})), "position 1", "finite");
}

TEST(Holm, EqualsStatsmodels) {
  for (const Json& c : golden("holm")) {
    const Numbers corrected = holm_corrected(c["p"].get<Numbers>());
    const auto expected = c["corrected"].get<Numbers>();
    ASSERT_EQ(corrected.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(corrected[i], expected[i], 1e-15) << c;
  }
  EXPECT_TRUE(holm_corrected({}).empty());
  EXPECT_ERROR(InputError, holm_corrected(Numbers({0.5, NAN})), "p-values", "nan");
}

TEST(PairsNeeded, EqualsStatsmodels) {
  for (const Json& c : golden("power")) {
    const double effect = c["effect"], level = c["significance"];
    EXPECT_EQ(pairs_needed(-2 * effect, 2, level), c["pairs"].get<int64_t>()) << c;
    EXPECT_NEAR(power_of_test(c["pairs"], effect, 1, level), c["power"].get<double>(), 1e-9) << c;
    EXPECT_NEAR(power_of_test(3, effect, 1, level), c["power_at_3"].get<double>(), 1e-9) << c;
  }
}

TEST(PairsNeeded, SimulatedTestsWithSoManyPairsFindTheDifferenceInFourOfFive) {
  const int64_t pairs = pairs_needed(0.9, 1).value();
  Rng rng(5);
  constexpr int kTrials = 4000;
  int found = 0;
  for (int n = 0; n < kTrials; ++n)
    found += paired_t_test(normal_numbers(rng, static_cast<size_t>(pairs), 0.9)).p < 0.05;
  const double power = power_of_test(pairs, 0.9, 1);
  EXPECT_GE(power, 0.8);
  EXPECT_NEAR(found / double{kTrials}, power, 4 * std::sqrt(0.16 / kTrials));
}

TEST(PairsNeeded, NobodyCanSayWithoutADifferenceOrASpread) {
  EXPECT_EQ(pairs_needed(0, 1), std::nullopt);
  EXPECT_EQ(pairs_needed(0.1, NAN), std::nullopt);
  EXPECT_EQ(pairs_needed(1e-4, 1), std::nullopt);
  EXPECT_EQ(pairs_needed(0.1, 0), 2);
  EXPECT_EQ(pairs_needed(1e9, 1), 2);
  EXPECT_ERROR(InputError, power_of_test(1, 1, 1), "pairs >= 2");
}

TEST(McNemar, EqualsStatsmodels) {
  for (const Json& c : golden("mcnemar")) {
    const McNemar test = mcnemar(c["first"].get<int64_t>(), c["second"].get<int64_t>());
    expect_close(test.exact_p, c["exact"], c.dump());
    expect_close(test.corrected_p, c["corrected"], c.dump());
  }
}

TEST(McNemar, CountsTheItemsOnWhichTheTwoDisagree) {
  const Numbers first = {1, 1, 0, 0, 1, 0, 1}, second = {1, 0, 1, 0, 0, 0, 0};
  const McNemar test = mcnemar(first, second);
  EXPECT_EQ(test.only_first, 3);
  EXPECT_EQ(test.only_second, 1);
  EXPECT_DOUBLE_EQ(test.exact_p, 2 * (1 + 4) / 16.0);
  EXPECT_EQ(mcnemar(0, 0).exact_p, 1);
  EXPECT_ERROR(InputError, mcnemar(Numbers({0.5}), Numbers({1})), "0 and 1");
  EXPECT_ERROR(InputError, mcnemar(Numbers({1}), Numbers({1, 0})), "1 and 2 scores");
}

TEST(Bootstrap, EqualsTheQuantilesOfAllResamples) {
  const Numbers values = {0.0, 1.0, 5.0};
  Numbers means;
  for (const double a : values) {
    for (const double b : values) {
      for (const double c : values) means.push_back((a + b + c) / 3);
    }
  }
  std::sort(means.begin(), means.end());
  const Interval interval = bootstrap_interval(values, {.seed = 3, .resamples = 20000});
  // Each of the 27 resamples has probability 1/27 = 3.7 %: the 2.5 % quantiles are the extremes.
  EXPECT_DOUBLE_EQ(interval.low, means.front());
  EXPECT_DOUBLE_EQ(interval.high, means.back());
  const Numbers hits = [] {
    Numbers out(400, 0.0);
    std::fill(out.begin(), out.begin() + 120, 1.0);
    return out;
  }();
  // The mean of a resample of 0s and 1s is Binomial(400, 0.3) / 400; its quantiles by SciPy:
  // scipy.stats.binom.ppf([0.025, 0.975], 400, 0.3) = 102, 138.
  const Interval share = bootstrap_interval(hits, {.seed = 1, .resamples = 40000});
  EXPECT_NEAR(share.low, 102 / 400.0, 1.01 / 400);
  EXPECT_NEAR(share.high, 138 / 400.0, 1.01 / 400);
}

TEST(Bootstrap, TheSameSeedGivesTheSameIntervalAndCoversTheTruth) {
  Rng rng(11);
  int covered = 0;
  constexpr int kTrials = 600;
  for (int n = 0; n < kTrials; ++n) {
    const Numbers values = normal_numbers(rng, 60, 0.4);
    const Interval interval =
        bootstrap_interval(values, {.seed = static_cast<uint64_t>(n), .resamples = 400});
    covered += interval.low <= 0.4 && 0.4 <= interval.high;
    if (n > 0) continue;
    const Interval again = bootstrap_interval(values, {.seed = 0, .resamples = 400});
    const Interval other = bootstrap_interval(values, {.seed = 9, .resamples = 400});
    EXPECT_EQ(again.low, interval.low);
    EXPECT_EQ(again.high, interval.high);
    EXPECT_NE(other.low, interval.low);
  }
  EXPECT_NEAR(covered / double{kTrials}, 0.94, 0.03);
  EXPECT_TRUE(std::isnan(bootstrap_interval({}).low));
  EXPECT_ERROR(InputError, bootstrap_interval(Numbers({1}), {.resamples = 0}), "resample");
}

TEST(PairedComparison, HitsAreJudgedByMcNemarAndOtherScoresByTheTTest) {
  const Numbers first = {1, 1, 1, 0, 1, 1, 1, 1}, second = {0, 1, 0, 0, 1, 0, 0, 0};
  const PairedComparison hits = paired_comparison(first, second);
  EXPECT_EQ(hits.items, 8);
  EXPECT_DOUBLE_EQ(hits.first_mean, 7 / 8.0);
  EXPECT_DOUBLE_EQ(hits.second_mean, 2 / 8.0);
  EXPECT_DOUBLE_EQ(hits.test.mean, 5 / 8.0);
  EXPECT_NEAR(hits.first_error, std::sqrt(7 / 8.0 / 8 / 7), 1e-15);
  ASSERT_TRUE(hits.mcnemar.has_value());
  EXPECT_DOUBLE_EQ(hits.p(), 2 / 32.0);
  EXPECT_LE(hits.bootstrap.low, hits.test.mean);
  EXPECT_GE(hits.bootstrap.high, hits.test.mean);

  const PairedComparison losses =
      paired_comparison(Numbers({2.5, 3.0, 1.0}), Numbers({2.0, 2.75, 1.25}));
  EXPECT_FALSE(losses.mcnemar.has_value());
  EXPECT_EQ(losses.p(), paired_t_test(Numbers({0.5, 0.25, -0.25})).p);
  EXPECT_ERROR(InputError, paired_comparison(Numbers({1, 0}), Numbers({1})), "2 and 1 scores");
  EXPECT_ERROR(InputError, paired_comparison(Numbers({INFINITY}), Numbers({1})), "finite");
}

TEST(PairedComparison, OfNoItemsHasNoNumbers) {
  const PairedComparison none = paired_comparison({}, {});
  EXPECT_EQ(none.items, 0);
  EXPECT_TRUE(std::isnan(none.first_mean) && std::isnan(none.p()) &&
              std::isnan(none.bootstrap.low));
}

}  // namespace
}  // namespace fovea::statistics_test
