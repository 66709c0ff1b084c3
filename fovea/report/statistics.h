// Statistics of paired measurements: is a difference more than chance?
//
// Pairs are measured under the same conditions: the same seed of two variants, the same item of two
// models. A difference is first minus second. Scores, losses and differences must be finite;
// InputError otherwise. Everything is a pure function; the bootstrap draws from a seed (rng.h).
// Values agree with SciPy and statsmodels (tests/golden/make_statistics_cases.py). Spec E-7.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace fovea {

/// A verdict is given below this p, after correction; intervals cover 1 - kSignificance.
inline constexpr double kSignificance = 0.05;
/// The chance of seeing a true difference that `pairs_needed` asks for.
inline constexpr double kPower = 0.8;

/// Two bounds; NaN where there are none.
struct Interval {
  double low = std::numeric_limits<double>::quiet_NaN();
  double high = std::numeric_limits<double>::quiet_NaN();
};

/// Arithmetic mean; NaN for no values.
double mean_of(std::span<const double> values);
/// Sample standard deviation (n - 1); NaN for fewer than two values.
double deviation_of(std::span<const double> values);
/// deviation / sqrt(n) (spec 9.1); NaN for fewer than two values.
double standard_error(std::span<const double> values);

/// Student's t-test of paired differences against a mean of zero, two-sided, and the interval of
/// the mean. It assumes that the differences are about normally distributed.
struct PairedTest {
  int64_t pairs = 0;
  double mean = std::numeric_limits<double>::quiet_NaN();
  double deviation = std::numeric_limits<double>::quiet_NaN();
  double error = std::numeric_limits<double>::quiet_NaN();  // of the mean
  double t = std::numeric_limits<double>::quiet_NaN();
  double p = std::numeric_limits<double>::quiet_NaN();
  Interval interval = {};                                     // 95 %, for this difference alone
  double freedom = std::numeric_limits<double>::quiet_NaN();  // NaN: pairs - 1
};

/// NaN where the pairs are too few: everything below one pair, all but the mean below two.
/// Differences that all equal the same number have p = 0, or 1 if that number is zero.
PairedTest paired_t_test(std::span<const double> differences);

/// Holm's step-down correction: with the p-values ascending, p_(i) becomes the largest
/// (m - j + 1) p_(j) over j <= i, at most 1. Calling what is below kSignificance significant makes
/// one false claim or more in at most 5 % of the families, whatever the dependence between them.
/// The order of the answer is that of the argument. InputError outside [0, 1].
std::vector<double> holm_corrected(std::span<const double> p_values);

/// Pairs with which a paired t-test at level `significance` finds a true difference of `mean` and
/// `deviation` with the chance kPower (noncentral t distribution); at least 2. Empty where there is
/// no answer: no spread estimated, no difference, or more than 1e6 pairs. Where the mean exceeds 26
/// deviations the answer may be two pairs too high.
std::optional<int64_t> pairs_needed(double mean, double deviation,
                                    double significance = kSignificance);
/// The chance that such a test with `pairs` >= 2 pairs finds the difference.
double power_of_test(int64_t pairs, double mean, double deviation,
                     double significance = kSignificance);

/// McNemar's test of two lists of hits and misses: only items on which the two disagree count.
struct McNemar {
  int64_t only_first = 0;   // hits of the first alone
  int64_t only_second = 0;  // hits of the second alone
  double exact_p = 1;       // two-sided binomial
  double corrected_p = 1;   // chi-squared, one degree of freedom, with the continuity correction
};
McNemar mcnemar(int64_t only_first, int64_t only_second);
/// The same from scores of 0 and 1; InputError for others and for lists of different lengths.
McNemar mcnemar(std::span<const double> first, std::span<const double> second);

struct BootstrapOptions {
  uint64_t seed = 0;
  int64_t resamples = 10000;
};
/// Percentile bootstrap interval (95 %) of the mean of `differences`: the same numbers for the same
/// seed. Too narrow below about 20 differences; use paired_t_test there. NaN for no differences.
Interval bootstrap_interval(std::span<const double> differences, BootstrapOptions options = {});

/// Two models on the same items.
struct PairedComparison {
  int64_t items = 0;
  double first_mean = std::numeric_limits<double>::quiet_NaN();
  double first_error = std::numeric_limits<double>::quiet_NaN();  // standard error of the mean
  double second_mean = std::numeric_limits<double>::quiet_NaN();
  double second_error = std::numeric_limits<double>::quiet_NaN();
  PairedTest test = {};                 // of first - second
  Interval bootstrap = {};              // of the mean of first - second
  std::optional<McNemar> mcnemar = {};  // where every score is 0 or 1

  /// The p-value to report: McNemar's exact one for scores of 0 and 1, else that of the t-test.
  double p() const { return mcnemar ? mcnemar->exact_p : test.p; }
};
/// InputError for lists of different lengths and scores that are not finite.
PairedComparison paired_comparison(std::span<const double> first, std::span<const double> second,
                                   BootstrapOptions options = {});

}  // namespace fovea
