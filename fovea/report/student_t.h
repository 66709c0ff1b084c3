// Student's t distribution, central and noncentral, by the incomplete beta function.
//
// Sources: DLMF 8.17 (continued fraction of the incomplete beta function), Lenth 1989, AS 243
// (noncentral t). Values agree with SciPy to 1e-10 (tests/golden/statistics.json). All functions
// throw InputError for arguments outside their domain, NaN included.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fovea {

/// Regularised incomplete beta function I_x(a, b): the probability that a Beta(a, b) variable is at
/// most x. a, b > 0 and 0 <= x <= 1.
double incomplete_beta(double a, double b, double x);

/// P(T <= t) of Student's t distribution with `freedom` > 0 degrees of freedom. t may be infinite.
double student_t_cdf(double t, double freedom);

/// P(|T| >= |t|): the two-sided p-value of t, exact far into the tail.
double student_t_two_sided(double t, double freedom);

/// The t with P(T <= t) = p, 0 < p < 1.
double student_t_quantile(double p, double freedom);

/// P(T <= t) of the noncentral t distribution with shift `shift`, t >= 0 and |shift| <= 37: beyond
/// that exp(-shift^2 / 2) leaves the range of double.
double noncentral_t_cdf(double t, double freedom, double shift);

}  // namespace fovea
