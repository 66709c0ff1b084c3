// Paired tests, correction for many comparisons, sample sizes, bootstrap.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "fovea/base/error.h"
#include "fovea/base/rng.h"
#include "fovea/report/student_t.h"

namespace fovea {
namespace {

void require_finite(std::span<const double> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    require<InputError>(std::isfinite(values[i]), "statistics",
                        "expected finite numbers; got {} at position {}; leave out runs and items "
                        "without a result",
                        values[i], i);
  }
}

std::vector<double> differences_of(std::span<const double> first, std::span<const double> second) {
  require<InputError>(first.size() == second.size(), "statistics",
                      "expected two lists of the same items; got {} and {} scores; pair them by "
                      "item first",
                      first.size(), second.size());
  std::vector<double> differences(first.size());
  std::transform(first.begin(), first.end(), second.begin(), differences.begin(), std::minus<>());
  return differences;
}

bool is_hit_or_miss(std::span<const double> scores) {
  return std::all_of(scores.begin(), scores.end(), [](double s) { return s == 0 || s == 1; });
}

/// The q-quantile of sorted values, linear between neighbours.
double quantile_of(const std::vector<double>& sorted, double q) {
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double deviation_of(std::span<const double> values) {
  if (values.size() < 2) return std::numeric_limits<double>::quiet_NaN();
  const double mean = mean_of(values);
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

double standard_error(std::span<const double> values) {
  return deviation_of(values) / std::sqrt(static_cast<double>(values.size()));
}

PairedTest paired_t_test(std::span<const double> differences) {
  require_finite(differences);
  PairedTest test{.pairs = static_cast<int64_t>(differences.size())};
  if (differences.empty()) return test;
  test.mean = mean_of(differences);
  if (differences.size() < 2) return test;
  test.deviation = deviation_of(differences);
  test.error = standard_error(differences);
  const auto freedom = static_cast<double>(differences.size() - 1);
  test.t = test.mean == 0 ? 0 : test.mean / test.error;  // infinite without spread
  test.p = student_t_two_sided(test.t, freedom);
  const double reach = student_t_quantile(1 - kSignificance / 2, freedom) * test.error;
  test.interval = {test.mean - reach, test.mean + reach};
  return test;
}

std::vector<double> holm_corrected(std::span<const double> p_values) {
  for (const double p : p_values) {
    require<InputError>(p >= 0 && p <= 1, "statistics",
                        "expected p-values between 0 and 1; got {}; leave out comparisons without "
                        "a test",
                        p);
  }
  std::vector<size_t> ascending(p_values.size());
  std::iota(ascending.begin(), ascending.end(), size_t{0});
  std::stable_sort(ascending.begin(), ascending.end(),
                   [&](size_t a, size_t b) { return p_values[a] < p_values[b]; });
  std::vector<double> corrected(p_values.size());
  double largest = 0;
  for (size_t i = 0; i < ascending.size(); ++i) {
    const auto still_open = static_cast<double>(p_values.size() - i);
    largest = std::max(largest, std::min(1.0, still_open * p_values[ascending[i]]));
    corrected[ascending[i]] = largest;
  }
  return corrected;
}

double power_of_test(int64_t pairs, double mean, double deviation, double significance) {
  require<InputError>(
      pairs >= 2 && std::isfinite(mean) && deviation > 0 && significance > 0 && significance < 1,
      "statistics",
      "expected pairs >= 2, a finite mean, a deviation above 0 and a significance "
      "between 0 and 1; got {}, {}, {}, {}; estimate the deviation from two pairs "
      "or more",
      pairs, mean, deviation, significance);
  const auto freedom = static_cast<double>(pairs - 1);
  const double critical = student_t_quantile(1 - significance / 2, freedom);
  // The largest shift of noncentral_t_cdf; at 5 % two pairs suffice there.
  const double shift =
      std::min(37.0, std::abs(mean) / deviation * std::sqrt(static_cast<double>(pairs)));
  const double right = 1 - noncentral_t_cdf(critical, freedom, shift);
  const double left = 1 - noncentral_t_cdf(critical, freedom, -shift);
  return right + left;
}

std::optional<int64_t> pairs_needed(double mean, double deviation, double significance) {
  constexpr double kMost = 1e6, kNearlyNormal = 1e7;  // pairs, degrees of freedom
  if (!std::isfinite(mean) || mean == 0 || !std::isfinite(deviation)) return std::nullopt;
  if (deviation == 0) return 2;
  const auto enough = [&](int64_t pairs) {
    return power_of_test(pairs, mean, deviation, significance) >= kPower;
  };
  // The normal distribution's answer is a few pairs too low; the search goes on from there.
  const double reach = student_t_quantile(1 - significance / 2, kNearlyNormal) +
                       student_t_quantile(kPower, kNearlyNormal);
  const double normal = std::pow(reach * deviation / mean, 2);
  if (!(normal < kMost)) return std::nullopt;
  auto pairs = std::max(int64_t{2}, static_cast<int64_t>(normal) + 2);
  while (!enough(pairs)) ++pairs;
  while (pairs > 2 && enough(pairs - 1)) --pairs;
  return pairs;
}

McNemar mcnemar(int64_t only_first, int64_t only_second) {
  require<InputError>(only_first >= 0 && only_second >= 0, "statistics",
                      "expected counts of items; got {} and {}; pass 0 or more", only_first,
                      only_second);
  McNemar test{.only_first = only_first, .only_second = only_second};
  const int64_t disagree = only_first + only_second;
  if (disagree == 0) return test;
  const auto fewer = static_cast<double>(std::min(only_first, only_second));
  const auto n = static_cast<double>(disagree);
  // P(Binomial(n, 1/2) <= k) = I_{1/2}(n - k, k + 1); DLMF 8.17.5.
  const double tail = 2 * fewer >= n ? 1 : incomplete_beta(n - fewer, fewer + 1, 0.5);
  test.exact_p = std::min(1.0, 2 * tail);
  const double apart = std::max(0.0, n - 2 * fewer - 1);
  test.corrected_p = std::erfc(std::sqrt(apart * apart / n / 2));
  return test;
}

McNemar mcnemar(std::span<const double> first, std::span<const double> second) {
  require<InputError>(is_hit_or_miss(first) && is_hit_or_miss(second), "statistics",
                      "expected scores of 0 and 1 for McNemar's test; got others; use "
                      "paired_t_test() or bootstrap_interval()");
  const std::vector<double> differences = differences_of(first, second);
  return mcnemar(std::count(differences.begin(), differences.end(), 1.0),
                 std::count(differences.begin(), differences.end(), -1.0));
}

Interval bootstrap_interval(std::span<const double> differences, BootstrapOptions options) {
  require_finite(differences);
  require<InputError>(options.resamples >= 1, "statistics",
                      "expected 1 resample or more for the bootstrap; got {}; use 10000",
                      options.resamples);
  if (differences.empty()) return {};
  Rng rng(options.seed);
  std::vector<double> means(static_cast<size_t>(options.resamples));
  for (double& mean : means) {
    double sum = 0;
    for (size_t i = 0; i < differences.size(); ++i)
      sum += differences[rng.below(differences.size())];
    mean = sum / static_cast<double>(differences.size());
  }
  std::sort(means.begin(), means.end());
  return {quantile_of(means, kSignificance / 2), quantile_of(means, 1 - kSignificance / 2)};
}

PairedComparison paired_comparison(std::span<const double> first, std::span<const double> second,
                                   BootstrapOptions options) {
  const std::vector<double> differences = differences_of(first, second);
  require_finite(first);
  require_finite(second);
  PairedComparison comparison{.items = static_cast<int64_t>(first.size()),
                              .first_mean = mean_of(first),
                              .first_error = standard_error(first),
                              .second_mean = mean_of(second),
                              .second_error = standard_error(second),
                              .test = paired_t_test(differences),
                              .bootstrap = bootstrap_interval(differences, options)};
  if (!first.empty() && is_hit_or_miss(first) && is_hit_or_miss(second)) {
    comparison.mcnemar = mcnemar(first, second);
  }
  return comparison;
}

}  // namespace fovea
