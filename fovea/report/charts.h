// The charts of the report as gnuplot scripts.
//
// Every chart exists in two sizes, because text in an SVG shrinks with it. Two wide ones fit beside
// each other and have the names at the ends of the curves. A narrow one is for telephones, where
// the page shows a legend instead.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fovea/report/compare_result.h"
#include "fovea/report/gnuplot.h"
#include "fovea/report/scaling.h"
#include "fovea/report/series.h"

namespace fovea {

/// Width of a character of the charts' texts.
inline constexpr int64_t kCharacterPixels = 7;

enum class ChartSize { full, wide, narrow };
int64_t chart_width(ChartSize size);

/// Series number of a variant: 0 is the reference, the others follow in their order.
int series_of(const CompareResult& result, size_t variant);

/// A curve chart: bands of variants on one pair of axes.
struct CurveChart {
  std::string label = "";
  std::string x_title = "";
  std::vector<Band> bands = {};
  std::vector<CompareBaseline> levels = {};  // dashed horizontal lines
  /// Curves above this are cut off (the first steps of training would flatten everything else);
  /// NaN: nothing is cut.
  double top = kNotANumber;
  bool with_points = false;
};
GnuplotChart curve_chart(const CompareResult& result, const CurveChart& what, ChartSize size);

/// A value that the first part of training does not exceed: the largest mean after the first eighth
/// of the way. NaN without curves.
double top_without_start(const std::vector<Band>& bands);

/// Temperature of each layer (bands as temperature_bands() gives them).
GnuplotChart temperature_chart(const CompareVariant& variant, const std::vector<Band>& layers,
                               ChartSize size);

/// Loss over size or tokens, one curve a family, both on a logarithmic axis of x.
GnuplotChart scaling_chart(const CompareResult& result, const ScalingStudy& study, ChartSize size);
/// The band of each family's curve (parameters in thousands, tokens in thousands).
std::vector<Band> scaling_bands(const ScalingStudy& study);

/// One horizontal bar.
struct Bar {
  std::string name = "";
  double value = kNotANumber, low = kNotANumber,
         high = kNotANumber;  // low..high: whisker, NaN for none
  std::string text = "";      // at the end of the bar
  int color = ChartColor::kBaseline;
  std::string variant = "";  // empty for a baseline
};
GnuplotChart bar_chart(const std::string& label, const std::vector<Bar>& bars, ChartSize size);

/// The difference of every variant to the reference: a dot per seed, the mean, and two standard
/// errors to each side.
GnuplotChart difference_chart(const CompareResult& result, ChartSize size);

}  // namespace fovea
