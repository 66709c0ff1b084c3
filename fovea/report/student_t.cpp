// Incomplete beta function, Student's t, noncentral t.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/student_t.h"

#include <math.h>  // lgamma_r: std::lgamma writes to the global signgam

#include <algorithm>
#include <cmath>
#include <limits>

#include "fovea/base/error.h"

namespace fovea {
namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
constexpr double kPi = 3.14159265358979323846;
constexpr double kLargestShift = 37;

double log_gamma(double x) {
  int sign = 0;
  return ::lgamma_r(x, &sign);
}

double log_beta(double a, double b) { return log_gamma(a) + log_gamma(b) - log_gamma(a + b); }

/// The continued fraction of DLMF 8.17.22 by Lentz's method. It converges in O(sqrt(max(a, b)))
/// steps where x < (a + 1) / (a + b + 2).
double beta_fraction(double a, double b, double x) {
  constexpr int kMostSteps = 100000;  // enough for a, b up to 1e9
  constexpr double kTiny = 1e-300;    // in place of a zero denominator
  const auto nonzero = [](double value) { return std::abs(value) < kTiny ? kTiny : value; };
  double c = 1, d = 1 / nonzero(1 - (a + b) * x / (a + 1)), fraction = d;
  for (int step = 1; step <= kMostSteps; ++step) {
    const double m = step;
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    d = 1 / nonzero(1 + even * d);
    c = nonzero(1 + even / c);
    fraction *= d * c;
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    d = 1 / nonzero(1 + odd * d);
    c = nonzero(1 + odd / c);
    fraction *= d * c;
    if (std::abs(d * c - 1) <= 2 * kEpsilon) return fraction;
  }
  fail<NumericalError>("statistics",
                       "expected the incomplete beta function to converge in {} steps; got a = {}, "
                       "b = {}, x = {}; use fewer pairs",
                       kMostSteps, a, b, x);
}

/// I_x(a, b) with y = 1 - x given by the caller, who may know it to more digits.
double incomplete_beta(double a, double b, double x, double y) {
  if (x <= 0) return 0;
  if (y <= 0) return 1;
  const double front = std::exp(a * std::log(x) + b * std::log(y) - log_beta(a, b));
  if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
  return 1 - front * beta_fraction(b, a, y) / b;
}

double t_density(double t, double freedom) {
  return std::exp(-log_beta(0.5, freedom / 2) - 0.5 * std::log(freedom) -
                  0.5 * (freedom + 1) * std::log1p(t * t / freedom));
}

void require_freedom(double freedom) {
  require<InputError>(freedom > 0 && std::isfinite(freedom), "statistics",
                      "expected degrees of freedom above 0; got {}; a test needs two pairs or more",
                      freedom);
}

}  // namespace

double incomplete_beta(double a, double b, double x) {
  require<InputError>(a > 0 && b > 0 && std::isfinite(a) && std::isfinite(b) && x >= 0 && x <= 1,
                      "statistics",
                      "expected incomplete_beta(a > 0, b > 0, 0 <= x <= 1); got ({}, {}, {}); pass "
                      "finite arguments in range",
                      a, b, x);
  return incomplete_beta(a, b, x, 1 - x);
}

double student_t_two_sided(double t, double freedom) {
  require_freedom(freedom);
  require<InputError>(!std::isnan(t), "statistics",
                      "expected a value of t; got NaN; leave out what is no number");
  if (std::isinf(t)) return 0;
  const double square = t * t / freedom;
  if (std::isinf(square)) return 0;
  return incomplete_beta(freedom / 2, 0.5, 1 / (1 + square), square / (1 + square));
}

double student_t_cdf(double t, double freedom) {
  const double tail = student_t_two_sided(t, freedom) / 2;
  return t > 0 ? 1 - tail : tail;
}

double student_t_quantile(double p, double freedom) {
  require_freedom(freedom);
  require<InputError>(p > 0 && p < 1, "statistics",
                      "expected a probability between 0 and 1; got {}; pass 0.975 for the bound of "
                      "a 95 % interval",
                      p);
  if (p == 0.5) return 0;
  const double target = 2 * std::min(p, 1 - p);
  double low = 0, high = 1;
  while (student_t_two_sided(high, freedom) > target) {
    low = high;
    high *= 2;
  }
  // Newton's method; a step that leaves the bracket is replaced by its middle.
  double t = low > 0 ? low : high / 2;
  for (int step = 0; step < 200; ++step) {
    const double excess = student_t_two_sided(t, freedom) - target;
    (excess > 0 ? low : high) = t;
    double next = t + excess / (2 * t_density(t, freedom));
    if (!(next > low && next < high)) next = (low + high) / 2;
    if (std::abs(next - t) <= 2 * kEpsilon * t) break;
    t = next;
  }
  return p < 0.5 ? -t : t;
}

double noncentral_t_cdf(double t, double freedom, double shift) {
  require_freedom(freedom);
  require<InputError>(
      t >= 0 && std::isfinite(t) && std::abs(shift) <= kLargestShift, "statistics",
      "expected noncentral_t_cdf(t >= 0, freedom, |shift| <= {}); got t = {}, shift = {}; pass "
      "arguments in range",
      kLargestShift, t, shift);
  const double below_zero = 0.5 * std::erfc(shift / std::sqrt(2.0));
  if (t == 0) return below_zero;
  const double b = freedom / 2, square = shift * shift;
  const double x = t * t / (freedom + t * t), y = freedom / (freedom + t * t);
  const double power = std::pow(y, b);
  // AS 243: a Poisson mixture of incomplete beta functions of rising first argument, each from the
  // one before it: I_x(a + 1, b) = I_x(a, b) - x^a y^b / (a B(a, b)).
  double odd = incomplete_beta(0.5, b, x, y), even = 1 - power;
  double odd_step = 2 * power * std::exp(0.5 * std::log(x) - log_beta(0.5, b));
  double even_step = b * x * power;
  double p = 0.5 * std::exp(-square / 2), q = std::sqrt(2 / kPi) * p * shift;
  double remaining = 0.5 - p, a = 0.5, sum = p * odd + q * even;
  for (int n = 1; n <= 4000 && 2 * remaining * std::abs(odd - odd_step) > 1e-15; ++n) {
    odd -= odd_step;
    even -= even_step;
    a += 1;
    odd_step *= x * (a + b - 1) / a;
    even_step *= x * (a + b - 0.5) / (a + 0.5);
    p *= square / (2.0 * n);
    q *= square / (2.0 * n + 1);
    remaining -= p;
    sum += p * odd + q * even;
  }
  return std::clamp(sum + below_zero, 0.0, 1.0);
}

}  // namespace fovea
