// Scaling of families of variants: loss against size or tokens, and at which share of either one
// family reaches another's loss.
//
// A family is a set of variants that differ in the swept keys and are alike otherwise
// (`compare.sweep` names it). Every share is found seed by seed, by interpolation between measured
// points that is linear in log loss over log size. Nothing is extrapolated: a loss that was not
// reached within the measured range gives a bound.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "fovea/report/compare_result.h"
#include "fovea/report/series.h"

namespace fovea {

enum class ScalingAxis { parameters, tokens };
std::span<const std::string_view> enum_names(ScalingAxis);

/// One seed's points: x parameters or tokens, rising; y validation bits per byte.
struct ScalingLine {
  int64_t seed = 0;
  Line line;
};

/// loss = exp(intercept) * x^-exponent, least squares of the logarithms over all points and seeds.
/// NaN for fewer than three different x.
struct PowerLaw {
  double exponent = kNotANumber;
  double exponent_error = kNotANumber;  ///< standard error of the regression
  double intercept = kNotANumber;
};

struct ScalingCurve {
  std::string family;
  size_t variant = 0;  ///< index of the family's first variant (its colour)
  std::vector<ScalingLine> seeds;
  PowerLaw fit;
};

/// The share of `x` at which a family reaches the loss that the reference family has at `x`. Below
/// 1: it needs less.
struct IsoLoss {
  enum class Bound { none, at_most, more_than };
  std::string family;
  double x = 0;  ///< parameters or tokens of the reference
  /// The mean over the seeds that both have. Where a seed reaches the loss outside of the measured
  /// range, `bound` says on which side. `ratio.mean` is then the largest (at_most) or smallest
  /// (more_than) share that is certain for every seed.
  Spread ratio;
  Bound bound = Bound::none;
  int64_t seeds = 0;
};

struct ScalingStudy {
  ScalingAxis axis = ScalingAxis::parameters;
  /// The points are from the validation curves of single runs, not from runs of their own. The
  /// middle of a run has a higher loss than a run whose schedule ends there.
  bool within_runs = false;
  std::vector<ScalingCurve> curves;  ///< the reference's family first
  std::vector<IsoLoss> iso_loss;     ///< by family, then by rising x
};

/// The studies that the result allows: families with at least two sizes (of equal, largest tokens),
/// and families with at least two token counts (of equal, largest size). Without any sweep, a third
/// study takes the variants whose validation curves have at least three points; it asks for the
/// reference's last point alone. Empty when there is nothing to compare.
std::vector<ScalingStudy> scaling_studies(const CompareResult& result);

/// The largest x of each family, in words: "focal reaches the loss of standard with 0.83 ± 0.05 of
/// the parameters (at 1.2 M)".
std::vector<std::string> scaling_sentences(const ScalingStudy& study);

/// The key `scaling` of `compare.json`: a list of `axis`, `within_runs`, `curves` and
/// `iso_loss_tokens_ratio` or `iso_loss_parameters_ratio`.
nlohmann::ordered_json scaling_json(const std::vector<ScalingStudy>& studies);

}  // namespace fovea
