// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/equivalence.h"

#include <algorithm>
#include <cmath>

#include "fovea/base/error.h"
#include "fovea/report/student_t.h"

namespace fovea {
namespace {

/// Degrees of freedom that give `test` its interval: n - 1 of pairs, Welch's of two samples.
double freedom_of(const PairedTest& test) {
  if (std::isfinite(test.freedom)) return test.freedom;
  return static_cast<double>(test.pairs - 1);
}

/// P(T <= distance / error). Without spread the answer is certain.
double one_sided(double distance, double error, double freedom) {
  if (error > 0) return student_t_cdf(distance / error, freedom);
  return distance < 0 ? 0 : 1;
}

}  // namespace

double EquivalenceTest::p() const {
  if (std::isnan(below) || std::isnan(above)) return below + above;
  return std::max(below, above);
}

EquivalenceTest equivalence_test(const PairedTest& test, double margin) {
  require<InputError>(std::isfinite(margin) && margin > 0, "statistics",
                      "expected a margin of equivalence above 0; got {}; state the largest "
                      "difference that does not matter",
                      margin);
  EquivalenceTest out{.margin = margin};
  if (test.pairs < 2) return out;
  const double freedom = freedom_of(test);
  out.below = one_sided(test.mean - margin, test.error, freedom);
  out.above = one_sided(-margin - test.mean, test.error, freedom);
  const double reach = student_t_quantile(1 - kSignificance, freedom) * test.error;
  out.interval = {test.mean - reach, test.mean + reach};
  return out;
}

PairedTest paired_t_test_of(double mean, double error, int64_t pairs) {
  require<InputError>(pairs >= 2 && std::isfinite(mean) && std::isfinite(error) && error >= 0,
                      "statistics",
                      "expected a finite mean, a standard error of 0 or more and 2 pairs or more; "
                      "got {}, {}, {}",
                      mean, error, pairs);
  const auto freedom = static_cast<double>(pairs - 1);
  PairedTest test{.pairs = pairs,
                  .mean = mean,
                  .deviation = error * std::sqrt(static_cast<double>(pairs)),
                  .error = error};
  test.t = mean == 0 ? 0 : mean / error;
  test.p = student_t_two_sided(test.t, freedom);
  const double reach = student_t_quantile(1 - kSignificance / 2, freedom) * error;
  test.interval = {mean - reach, mean + reach};
  return test;
}

PairedTest mean_of_tests(std::span<const PairedTest> tests) {
  require<InputError>(!tests.empty(), "statistics", "expected one test or more; got none");
  double mean = 0, squares = 0;
  int64_t pairs = 0;
  for (const PairedTest& test : tests) {
    mean += test.mean;
    squares += test.error * test.error;
    pairs += test.pairs;
  }
  const auto count = static_cast<double>(tests.size());
  return paired_t_test_of(mean / count, std::sqrt(squares) / count, pairs);
}

PairedTest welch_test(const SampleSummary& first, const SampleSummary& second) {
  const auto share = [](const SampleSummary& s) {
    require<InputError>(s.count >= 2 && std::isfinite(s.mean) && s.deviation >= 0, "statistics",
                        "expected a finite mean, a deviation of 0 or more and 2 runs or more; got "
                        "{}, {}, {}",
                        s.mean, s.deviation, s.count);
    return s.deviation * s.deviation / static_cast<double>(s.count);
  };
  const double a = share(first), b = share(second);
  require<InputError>(a + b > 0, "statistics",
                      "expected runs with a spread; got two samples without one; give the values "
                      "of the seeds");
  PairedTest test{.pairs = std::min(first.count, second.count),
                  .mean = first.mean - second.mean,
                  .error = std::sqrt(a + b)};
  test.freedom = (a + b) * (a + b) /
                 (a * a / static_cast<double>(first.count - 1) +
                  b * b / static_cast<double>(second.count - 1));
  test.t = test.mean / test.error;
  test.p = student_t_two_sided(test.t, test.freedom);
  const double reach = student_t_quantile(1 - kSignificance / 2, test.freedom) * test.error;
  test.interval = {test.mean - reach, test.mean + reach};
  return test;
}

}  // namespace fovea
