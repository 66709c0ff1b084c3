// Interpolation, smoothing and joining of curves.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/series.h"

#include <algorithm>
#include <cmath>

namespace fovea {
namespace {

constexpr size_t kLossBins = 120;  // more than the pixels of a chart can tell apart from a line

void add_point(Line& line, double x, double y) {
  const bool rises = line.x.empty() || x > line.x.back();
  if (std::isfinite(x) && std::isfinite(y) && rises) {
    line.x.push_back(x);
    line.y.push_back(y);
  }
}

/// Seconds after which a run had seen so many tokens.
Line seconds_of(const CompareRun& run) {
  Line line;
  for (const CurvePoint& point : run.curve)
    add_point(line, static_cast<double>(point.tokens), point.seconds);
  return line;
}

Line curve_line(const CompareRun& run, const ProgressAxis& axis, double CurvePoint::*value) {
  Line line;
  for (const CurvePoint& point : run.curve) {
    const double progress = axis.seconds ? point.seconds : static_cast<double>(point.tokens);
    add_point(line, progress / axis.scale, point.*value);
  }
  return smooth(line, kLossBins);
}

Line validation_line(const CompareRun& run, const ProgressAxis& axis) {
  const Line seconds = axis.seconds ? seconds_of(run) : Line();
  Line line;
  if (axis.seconds && seconds.empty()) return line;
  for (const ValidationPoint& point : run.validation_curve) {
    const auto tokens = static_cast<double>(point.tokens);
    add_point(line, (axis.seconds ? seconds.at(tokens) : tokens) / axis.scale, point.bits_per_byte);
  }
  return line;
}

template <class LineOf>
std::vector<Band> bands_of(const CompareResult& result, const LineOf& line_of) {
  std::vector<Band> bands;
  for (size_t v = 0; v < result.variants.size(); ++v) {
    std::vector<Line> lines;
    for (const CompareRun& run : result.variants[v].runs) {
      if (Line line = line_of(run); !line.empty()) lines.push_back(std::move(line));
    }
    if (Band band = combine(v, lines); !band.x.empty()) bands.push_back(std::move(band));
  }
  return bands;
}

/// `line` minus `other`, on the points of `line` that `other` covers.
Line minus(const Line& line, const Line& other) {
  Line out;
  if (other.empty()) return out;
  for (size_t i = 0; i < line.x.size(); ++i) {
    const bool covered = line.x[i] >= other.x.front() && line.x[i] <= other.x.back();
    if (covered) add_point(out, line.x[i], line.y[i] - other.at(line.x[i]));
  }
  return out;
}

}  // namespace

double Line::at(double position) const {
  const auto above = std::lower_bound(x.begin(), x.end(), position);
  if (above == x.begin()) return y.front();
  if (above == x.end()) return y.back();
  const auto i = static_cast<size_t>(above - x.begin());
  const double share = (position - x[i - 1]) / (x[i] - x[i - 1]);
  return y[i - 1] + share * (y[i] - y[i - 1]);
}

Band combine(size_t variant, const std::vector<Line>& lines) {
  Band band{.variant = variant};
  if (lines.empty()) return band;
  const Line* shortest = &lines.front();
  double first = -INFINITY, last = INFINITY;
  for (const Line& line : lines) {
    first = std::max(first, line.x.front());
    last = std::min(last, line.x.back());
    if (line.x.size() < shortest->x.size()) shortest = &line;
  }
  for (const double x : shortest->x) {
    if (x < first || x > last) continue;
    double sum = 0, low = INFINITY, high = -INFINITY;
    for (const Line& line : lines) {
      const double y = line.at(x);
      sum += y;
      low = std::min(low, y);
      high = std::max(high, y);
    }
    band.x.push_back(x);
    band.mean.push_back(sum / static_cast<double>(lines.size()));
    band.low.push_back(low);
    band.high.push_back(high);
  }
  return band;
}

Line smooth(const Line& line, size_t bins) {
  if (line.x.size() <= bins) return line;
  Line out;
  for (size_t bin = 0; bin < bins; ++bin) {
    const size_t begin = bin * line.x.size() / bins, end = (bin + 1) * line.x.size() / bins;
    double x = 0, y = 0;
    for (size_t i = begin; i < end; ++i) {
      x += line.x[i];
      y += line.y[i];
    }
    const auto count = static_cast<double>(end - begin);
    add_point(out, x / count, y / count);
  }
  return out;
}

ProgressAxis progress_axis(const CompareResult& result) {
  ProgressAxis axis{.seconds = result.budget == BudgetKind::time};
  double largest = 0;
  for (const CompareVariant& variant : result.variants) {
    for (const CompareRun& run : variant.runs) {
      if (run.curve.empty()) continue;
      const CurvePoint& end = run.curve.back();
      largest = std::max(largest, axis.seconds ? end.seconds : static_cast<double>(end.tokens));
    }
  }
  if (axis.seconds) {
    axis.scale = largest >= 7200 ? 3600 : largest >= 300 ? 60 : 1;
    axis.title = axis.scale == 3600 ? "hours" : axis.scale == 60 ? "minutes" : "seconds";
    return axis;
  }
  axis.scale = largest >= 2e9 ? 1e9 : largest >= 1e6 ? 1e6 : largest >= 2e3 ? 1e3 : 1;
  const bool whole = axis.scale == 1;
  axis.title = whole               ? "tokens"
               : axis.scale == 1e3 ? "thousand tokens"
               : axis.scale == 1e6 ? "million tokens"
                                   : "billion tokens";
  return axis;
}

std::vector<Band> loss_bands(const CompareResult& result, const ProgressAxis& axis) {
  return bands_of(result, [&](const CompareRun& run) {
    return curve_line(run, axis, &CurvePoint::train_loss);
  });
}

std::vector<Band> ln_z_bands(const CompareResult& result, const ProgressAxis& axis) {
  return bands_of(
      result, [&](const CompareRun& run) { return curve_line(run, axis, &CurvePoint::ln_z_rms); });
}

std::vector<Band> validation_bands(const CompareResult& result, const ProgressAxis& axis) {
  return bands_of(result, [&](const CompareRun& run) { return validation_line(run, axis); });
}

std::vector<Band> difference_bands(const CompareResult& result, const ProgressAxis& axis) {
  const CompareVariant* reference = result.reference_variant();
  if (reference == nullptr) return {};
  return bands_of(result, [&](const CompareRun& run) {
    for (const CompareRun& other : reference->runs) {
      if (other.seed == run.seed)
        return minus(validation_line(run, axis), validation_line(other, axis));
    }
    return Line();
  });
}

std::vector<Band> temperature_bands(const CompareVariant& variant) {
  size_t layers = 0;
  for (const CompareRun& run : variant.runs) {
    for (const TemperaturePoint& point : run.temperature)
      layers = std::max(layers, point.per_layer.size());
  }
  std::vector<Band> bands;
  for (size_t layer = 0; layer < layers; ++layer) {
    std::vector<Line> lines;
    for (const CompareRun& run : variant.runs) {
      Line line;
      for (const TemperaturePoint& point : run.temperature) {
        if (layer < point.per_layer.size())
          add_point(line, static_cast<double>(point.step), point.per_layer[layer]);
      }
      if (!line.empty()) lines.push_back(smooth(line, kLossBins));
    }
    // Here `variant` numbers the layer: each line of this chart is one.
    if (Band band = combine(layer, lines); !band.x.empty()) bands.push_back(std::move(band));
  }
  return bands;
}

}  // namespace fovea
