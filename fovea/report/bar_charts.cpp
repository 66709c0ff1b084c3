// Bars, and the dots of the paired differences. Vertical coordinates are pixels: a row per entry,
// its name above its bar.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "fovea/report/charts.h"
#include "fovea/report/format.h"

namespace fovea {
namespace {

constexpr int64_t kRow = 42, kName = 12, kBarTop = 21, kBarBottom = 35;  // pixels within a row
constexpr int64_t kSide = 4;                                             // left and right margin

/// Axes without decoration: x in the unit of the data, y in pixels from the top.
std::string canvas(const GnuplotChart& chart, double low, double high, int64_t right) {
  const double width = static_cast<double>(chart.width);
  return fmt::format(
      "unset key\nunset border\nunset tics\n"
      "set lmargin at screen {}\nset rmargin at screen {}\nset tmargin at screen 1\nset bmargin at "
      "screen 0\n"
      "set xrange [{}:{}]\nset yrange [{}:0]\n",
      kSide / width, 1 - static_cast<double>(right) / width, low, high, chart.height);
}

std::string label(GnuplotChart& chart, const std::string& text, double x, double y,
                  std::string_view align, int color) {
  return fmt::format("set label '{}' at {:.7g},{:.7g} {} tc rgb '{}'\n", chart.text(text), x, y,
                     align, color_code(color));
}

/// The mean and its range, as it appears on top of bars and between dots.
std::string line(double x1, double y1, double x2, double y2, double width, int color,
                 std::string_view more = "") {
  return fmt::format(
      "set arrow from {:.7g},{:.7g} to {:.7g},{:.7g} nohead front lw {} lc rgb '{}' {}\n", x1, y1,
      x2, y2, width, color_code(color), more);
}

struct Step {
  double size;
  int digits;
};

/// The round step (1, 2 or 5 times a power of ten) of an axis with about `count` of them.
Step round_step(double range, double count) {
  const double raw = range / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power) {
      step = factor * power;
      break;
    }
  }
  return {step, std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)))};
}

struct DifferenceRow {
  const CompareVariant* variant;
  int color;
  std::vector<double> seeds;
};

std::vector<DifferenceRow> difference_rows(const CompareResult& result) {
  std::vector<DifferenceRow> rows;
  const CompareVariant* reference = result.reference_variant();
  if (reference == nullptr) return rows;
  for (size_t v = 0; v < result.variants.size(); ++v) {
    const CompareVariant& variant = result.variants[v];
    DifferenceRow row{&variant, ChartColor::kSeries + series_of(result, v), {}};
    if (&variant == reference || variant.summary.pairs == 0) continue;
    for (const CompareRun& run : variant.runs) {
      for (const CompareRun& other : reference->runs) {
        if (run.seed != other.seed || !run.finished() || !other.finished()) continue;
        row.seeds.push_back(run.validation_bits_per_byte - other.validation_bits_per_byte);
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

/// Half of a symmetric axis that holds every dot, and the intervals up to three times that: the
/// interval of two seeds reaches six times as far as its dots.
double reach_of(const std::vector<DifferenceRow>& rows) {
  double dots = 1e-4, ends = 0;
  for (const DifferenceRow& row : rows) {
    for (const double d : row.seeds) dots = std::max(dots, std::abs(d));
    const auto [low, high] = row.variant->summary.difference_interval;
    if (std::isfinite(low) && std::isfinite(high))
      ends = std::max({ends, std::abs(low), std::abs(high)});
  }
  return std::max(dots, std::min(ends, 3 * dots)) * 1.08;
}

std::string axis_of_differences(GnuplotChart& chart, double reach, double bottom, ChartSize size) {
  std::string out;
  const Step step = round_step(2 * reach, size == ChartSize::narrow ? 4 : 8);
  for (double x = -std::floor(reach / step.size) * step.size; x <= reach; x += step.size) {
    const bool zero = std::abs(x) < step.size / 2;
    out += line(x, 22, x, bottom, zero ? 1.5 : 1, zero ? ChartColor::kMuted : ChartColor::kGrid);
    const std::string text = zero ? "0" : fmt::format("{:+.{}f}", x, step.digits);
    const bool edge = std::abs(x) > reach * 0.9;
    out += label(chart, text, x, bottom + 12, edge ? (x < 0 ? "left" : "right") : "center",
                 ChartColor::kMuted);
  }
  out += label(chart, "← better", -reach, 9, "left", ChartColor::kMuted);
  out += label(chart, "worse →", reach, 9, "right", ChartColor::kMuted);
  return out;
}

}  // namespace

GnuplotChart bar_chart(const std::string& what, const std::vector<Bar>& bars, ChartSize size) {
  GnuplotChart chart{.width = chart_width(size),
                     .height = kRow * static_cast<int64_t>(bars.size()) + 6,
                     .label = what};
  double longest = 0;
  int64_t cells = 1;
  for (const Bar& bar : bars) {
    longest = std::max({longest, std::isfinite(bar.value) ? bar.value : 0,
                        std::isfinite(bar.high) ? bar.high : 0});
    cells = std::max(cells, display_width(bar.text));
  }
  if (longest <= 0) longest = 1;
  const int64_t right = kCharacterPixels * cells + 14;
  chart.script = canvas(chart, 0, longest, right);
  const double pixel = longest / static_cast<double>(chart.width - kSide - right);
  const int64_t name_cells = (chart.width - 2 * kSide) / kCharacterPixels;
  std::string data = "$bars << END\n", plots;
  for (size_t i = 0; i < bars.size(); ++i) {
    const Bar& bar = bars[i];
    const double row = static_cast<double>(kRow) * static_cast<double>(i),
                 middle = row + (kBarTop + kBarBottom) / 2.0;
    chart.script += label(chart, shorten(single_line(bar.name), name_cells), 0, row + kName, "left",
                          ChartColor::kText);
    const double end = std::isfinite(bar.high)    ? std::max(bar.high, bar.value)
                       : std::isfinite(bar.value) ? bar.value
                                                  : 0;
    chart.script += label(chart, bar.text, end + 7 * pixel, middle, "left", ChartColor::kText);
    if (bar.high > bar.low) {
      chart.script += line(bar.low, middle, bar.high, middle, 1.5, ChartColor::kText);
      for (const double edge : {bar.low, bar.high}) {
        chart.script += line(edge, middle - 4, edge, middle + 4, 1.5, ChartColor::kText);
      }
    }
    // gnuplot draws no box of no size, but then the groups in the SVG would no longer match ours.
    const double value = std::isfinite(bar.value) ? bar.value : longest * 1e-6;
    data += fmt::format("{:.7g} {} 0 {:.7g} {} {}\n", value / 2, middle, value, row + kBarTop,
                        row + kBarBottom);
    plots += fmt::format(
        ", $bars every ::{0}::{0} using 1:2:3:4:5:6 with boxxyerror fs solid 0.9 noborder lc rgb "
        "'{1}'",
        i, color_code(bar.color));
    chart.plots.push_back(
        {.kind = "bar", .variant = bar.variant, .title = bar.name + ": " + bar.text});
  }
  chart.script += data + "END\nplot " + plots.substr(std::min<size_t>(2, plots.size())) + "\n";
  return chart;
}

GnuplotChart difference_chart(const CompareResult& result, ChartSize size) {
  const std::vector<DifferenceRow> rows = difference_rows(result);
  const int64_t head = 18, foot = 22;
  GnuplotChart chart{.width = chart_width(size),
                     .height = head + kRow * static_cast<int64_t>(rows.size()) + foot,
                     .label = "Difference to " + single_line(result.reference) +
                              " in bits per byte, seed by seed"};
  const double reach = reach_of(rows), bottom = static_cast<double>(chart.height - foot);
  chart.script =
      canvas(chart, -reach, reach, kSide) + axis_of_differences(chart, reach, bottom, size);
  const int64_t cells = (chart.width - 2 * kSide) / kCharacterPixels - 18;
  std::string data, plots;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& [variant, color, seeds] = rows[i];
    const VariantSummary& summary = variant->summary;
    const double row =
                     static_cast<double>(head) + static_cast<double>(kRow) * static_cast<double>(i),
                 middle = row + 29;
    const std::string p =
        std::isfinite(summary.corrected_p) ? ", p " + p_text(summary.corrected_p) : "";
    chart.script += label(chart, shorten(single_line(variant->name), cells), -reach, row + kName,
                          "left", color);
    chart.script += label(chart, difference_text(summary, 4) + p, reach, row + kName, "right",
                          ChartColor::kText);
    const auto [low, high] = summary.difference_interval;
    if (std::isfinite(low) && std::isfinite(high)) {
      chart.script += line(std::max(low, -reach), middle, std::min(high, reach), middle, 2, color);
    }
    chart.script += line(summary.difference, middle - 8, summary.difference, middle + 8, 3, color);
    data += fmt::format("$d{} << END\n", i);
    for (const double d : seeds) data += fmt::format("{:.7g} {}\n", d, middle);
    data += "END\n";
    plots +=
        fmt::format(", $d{} using 1:2 with points pt 7 ps 0.75 lc rgb '{}'", i, color_code(color));
    chart.plots.push_back({.kind = "dots", .variant = variant->name, .title = variant->name});
  }
  chart.script += data + "plot " + (plots.empty() ? "NaN" : plots.substr(2)) + "\n";
  return chart;
}

}  // namespace fovea
