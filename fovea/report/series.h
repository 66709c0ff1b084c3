// Curves of several seeds brought onto one grid: mean, lowest and highest.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "fovea/report/compare_result.h"

namespace fovea {

/// Points with rising x; y is never NaN.
struct Line {
  std::vector<double> x, y;

  bool empty() const { return x.empty(); }
  /// Linear between points, constant outside. The line must not be empty.
  double at(double position) const;
};

/// Over the seeds of one variant, on a common grid.
struct Band {
  size_t variant = 0;  // index in CompareResult::variants
  std::vector<double> x = {}, mean = {}, low = {}, high = {};
};

/// All lines on the points of the shortest one, within the range that all of them cover.
Band combine(size_t variant, const std::vector<Line>& lines);

/// Bins `line` into at most `bins` means of neighbouring points: less noise, fewer points.
Line smooth(const Line& line, size_t bins);

/// Progress on the x axis: seconds where the budget is time, else tokens; scaled, with its unit.
struct ProgressAxis {
  bool seconds = false;
  double scale = 1;
  std::string title = "";  // "million tokens"
};
ProgressAxis progress_axis(const CompareResult& result);

/// One band for each variant that has such a curve.
std::vector<Band> loss_bands(const CompareResult& result, const ProgressAxis& axis);
/// Root mean square of ln Z; empty where it was not logged.
std::vector<Band> ln_z_bands(const CompareResult& result, const ProgressAxis& axis);
std::vector<Band> validation_bands(const CompareResult& result, const ProgressAxis& axis);
/// Validation bits per byte minus those of the reference, seed by seed. The reference itself is
/// zero.
std::vector<Band> difference_bands(const CompareResult& result, const ProgressAxis& axis);
/// Temperature of each layer of one variant, mean over seeds; x is the step.
std::vector<Band> temperature_bands(const CompareVariant& variant);

}  // namespace fovea
