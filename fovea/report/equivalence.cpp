// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/equivalence.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

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

/// t, p and interval from mean, error and degrees of freedom.
void set_test(PairedTest& test) {
  const double freedom = freedom_of(test);
  test.t = test.mean == 0 ? 0 : test.mean / test.error;  // infinite without spread
  test.p = student_t_two_sided(test.t, freedom);
  const double reach = student_t_quantile(1 - kSignificance / 2, freedom) * test.error;
  test.interval = {test.mean - reach, test.mean + reach};
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
  PairedTest test{.pairs = pairs,
                  .mean = mean,
                  .deviation = error * std::sqrt(static_cast<double>(pairs)),
                  .error = error};
  set_test(test);
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

PairedTest test_over_trainings(std::span<const PairedTest> tests) {
  require<InputError>(tests.size() >= 2, "statistics",
                      "expected tests of two trainings or more; got {}", tests.size());
  std::vector<double> means;
  double of_pairs = 0;
  for (const PairedTest& test : tests) {
    require<InputError>(test.pairs == tests[0].pairs && test.pairs >= 2, "statistics",
                        "expected trainings that answer the same pairs, two or more; got {} and {}",
                        tests[0].pairs, test.pairs);
    means.push_back(test.mean);
    of_pairs += test.error / static_cast<double>(tests.size());
  }
  PairedTest out = paired_t_test(means);
  const double of_trainings = out.error;
  out.pairs = tests[0].pairs;
  out.deviation = std::numeric_limits<double>::quiet_NaN();
  out.error = std::hypot(of_pairs, of_trainings);
  const double parts = std::pow(of_pairs, 4) / freedom_of(tests[0]) +
                       std::pow(of_trainings, 4) / static_cast<double>(tests.size() - 1);
  out.freedom = parts > 0 ? std::pow(out.error, 4) / parts : freedom_of(tests[0]);
  set_test(out);
  return out;
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
  set_test(test);
  return test;
}

}  // namespace fovea
