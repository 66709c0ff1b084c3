// Equivalence of two variants: is their difference smaller than a margin that was stated before?
//
// A difference that is not significant is no evidence of equality: few seeds find nothing. Two
// one-sided t-tests (TOST, Schuirmann 1987) ask instead whether the mean lies inside the margin.
// Values agree with SciPy (tests/golden/make_statistics_cases.py). Spec E-7.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "fovea/report/statistics.h"

namespace fovea {

/// Tests of a mean against -margin and +margin. p is NaN where there is no spread to test with.
struct EquivalenceTest {
  double margin = 0;
  double below = std::numeric_limits<double>::quiet_NaN();  // p of "the mean is below +margin"
  double above = std::numeric_limits<double>::quiet_NaN();  // p of "the mean is above -margin"
  /// 90 %: inside the margin exactly where p() < kSignificance.
  Interval interval = {};

  /// The p-value of the equivalence: the larger of both.
  double p() const;
};

/// InputError for a margin that is not above 0. All NaN below two pairs.
EquivalenceTest equivalence_test(const PairedTest& test, double margin);

/// The test of numbers that stand in a table: `mean`, its standard error and the pairs. InputError
/// for fewer than two pairs, an error below 0, and what is not finite.
PairedTest paired_t_test_of(double mean, double error, int64_t pairs);

/// The mean of several tests with equal weights, as an average over tasks whose questions are
/// different ones: means are averaged, errors add up in squares. InputError for no tests.
PairedTest mean_of_tests(std::span<const PairedTest> tests);

/// One question asked of several trainings, each test over the same pairs. Means are averaged. The
/// error adds two parts in squares. One is that of the pairs: the mean of the tests' errors, as if
/// all trainings erred at the same pairs. The other is the spread of the means over the root of
/// their number. Degrees of freedom by Welch and Satterthwaite; `pairs` are those of one test.
/// InputError for fewer than two tests, and for tests of different pairs.
PairedTest test_over_trainings(std::span<const PairedTest> tests);

/// Mean, sample standard deviation and number of one variant's runs.
struct SampleSummary {
  double mean = 0, deviation = 0;
  int64_t count = 0;
};
/// Welch's t-test of `first` minus `second`: for runs that are not paired. `pairs` holds the
/// smaller count. InputError as paired_t_test_of(), also where both have no spread.
PairedTest welch_test(const SampleSummary& first, const SampleSummary& second);

}  // namespace fovea
