// Curves over the course of training.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "fovea/report/charts.h"
#include "fovea/report/format.h"

namespace fovea {
namespace {

constexpr double kStartShare = 0.12;
constexpr int64_t kLabelPixels = 15;  // line height of the names at the ends
constexpr size_t kMostLabels = 12;    // of layers; every k-th is named where there are more
constexpr int64_t kLabelCells = 20;   // longest name

struct Frame {
  int64_t left, right, top, bottom;  // margins in pixels
};

Frame frame_of(ChartSize size, int64_t label_cells) {
  const bool wide = size != ChartSize::narrow;
  return {.left = 46,
          .right = wide ? 22 + label_cells * kCharacterPixels : 12,
          .top = 12,
          .bottom = 44};
}

struct Range {
  double low = INFINITY, high = -INFINITY;
  void add(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
  void pad(double share) {
    const double room = high > low ? (high - low) * share : std::max(std::abs(high) * 0.05, 1e-3);
    low -= room;
    high += room;
  }
};

/// A name at the end of its curve.
struct EndLabel {
  double value = 0;  // where the curve ends
  double place = 0;  // where the name stands
  std::string name;
  int color = 0;
};

/// Moves names apart until none overlaps, keeping their order. `pixel` is the height of one pixel
/// in the chart's unit.
void spread_labels(std::vector<EndLabel>& labels, const Range& range, double pixel) {
  std::sort(labels.begin(), labels.end(),
            [](const auto& a, const auto& b) { return a.value < b.value; });
  const double gap = kLabelPixels * pixel;
  double floor = range.low;
  for (EndLabel& label : labels) {
    label.place = std::max(std::clamp(label.value, range.low, range.high), floor);
    floor = label.place + gap;
  }
  // What was pushed over the top comes down again, and pushes what is below it.
  double ceiling = range.high;
  for (auto label = labels.rbegin(); label != labels.rend(); ++label) {
    label->place = std::min(label->place, ceiling);
    ceiling = label->place - gap;
  }
}

std::string header(const GnuplotChart& chart, const Frame& frame, const Range& x, const Range& y,
                   const std::string& x_title, bool narrow) {
  const auto share = [](int64_t pixels, int64_t all) {
    return static_cast<double>(pixels) / static_cast<double>(all);
  };
  std::string out = fmt::format(
      "unset key\nset border 1 lc rgb '{0}'\nset grid ytics lt 1 lw 1 lc rgb '{1}'\n"
      "set xtics nomirror scale 0.4 tc rgb '{0}'\nset ytics nomirror scale 0 tc rgb '{0}'\nset "
      "mxtics 1\n"
      "set xlabel '{2}' tc rgb '{0}' offset 0,0.6\n",
      color_code(ChartColor::kMuted), color_code(ChartColor::kGrid), x_title);
  if (narrow) out += "set xtics autofreq\nset ytics autofreq\n";
  out += fmt::format(
      "set lmargin at screen {}\nset rmargin at screen {}\nset tmargin at screen {}\nset bmargin "
      "at screen {}\n",
      share(frame.left, chart.width), 1 - share(frame.right, chart.width),
      1 - share(frame.top, chart.height), share(frame.bottom, chart.height));
  return out +
         fmt::format("set xrange [{}:{}]\nset yrange [{}:{}]\n", x.low, x.high, y.low, y.high);
}

std::string data_block(const std::string& name, const Band& band) {
  std::string out = fmt::format("${} << END\n", name);
  for (size_t i = 0; i < band.x.size(); ++i) {
    out += fmt::format("{:.7g} {:.7g} {:.7g} {:.7g}\n", band.x[i], band.mean[i], band.low[i],
                       band.high[i]);
  }
  return out + "END\n";
}

/// One curve with what it looks like.
struct Stroke {
  const Band* band;
  int color;
  std::string kind = "", variant = "", title = "", name = "";
  double width = 2;
  bool filled = false, points = false;
};

struct Picture {
  std::string label, x_title;
  std::vector<Stroke> strokes;
  std::vector<CompareBaseline> levels;
  double top = kNotANumber;
  bool log_x = false;
};

Range y_range(const Picture& picture) {
  Range range;
  for (const Stroke& stroke : picture.strokes) {
    for (const double value : stroke.band->low) range.add(value);
    for (const double value : stroke.band->high) range.add(value);
  }
  for (const CompareBaseline& level : picture.levels) range.add(level.bits_per_byte);
  if (std::isfinite(picture.top) && picture.top > range.low) {
    double high = picture.top;
    for (const CompareBaseline& level : picture.levels) high = std::max(high, level.bits_per_byte);
    range.high = high;
  }
  range.pad(0.04);
  return range;
}

void add_end_labels(GnuplotChart& chart, std::vector<EndLabel> labels, const Range& y,
                    const Frame& frame) {
  const double pixel =
      (y.high - y.low) / static_cast<double>(chart.height - frame.top - frame.bottom);
  const double x_pixel = 1.0 / static_cast<double>(chart.width - frame.left - frame.right);
  spread_labels(labels, y, pixel);
  for (const EndLabel& label : labels) {
    const double end = std::clamp(label.value, y.low, y.high);
    chart.script += fmt::format(
        "set arrow from graph {:.7g}, first {:.7g} to graph {:.7g}, first {:.7g} nohead lw 1 lc "
        "rgb '{}'\n",
        1 + 2 * x_pixel, end, 1 + 11 * x_pixel, label.place, color_code(label.color));
    chart.script +=
        fmt::format("set label '{}' at graph {:.7g}, first {:.7g} left tc rgb '{}'\n",
                    chart.text(label.name), 1 + 14 * x_pixel, label.place, color_code(label.color));
  }
}

GnuplotChart draw(const Picture& picture, ChartSize size) {
  const bool wide = size != ChartSize::narrow;
  GnuplotChart chart{
      .width = chart_width(size), .height = wide ? 330 : 270, .label = picture.label};
  Range x;
  std::vector<EndLabel> labels;
  int64_t cells = 4;
  const auto add_label = [&](double value, const std::string& text, int color) {
    if (text.empty()) return;
    const std::string name = shorten(single_line(text), kLabelCells);
    cells = std::max(cells, display_width(name));
    labels.push_back({.value = value, .place = 0, .name = name, .color = color});
  };
  for (const Stroke& stroke : picture.strokes) {
    for (const double value : stroke.band->x) x.add(value);
    add_label(stroke.band->mean.back(), stroke.name, stroke.color);
  }
  for (const CompareBaseline& level : picture.levels) {
    add_label(level.bits_per_byte, level.name, ChartColor::kMuted);
  }
  if (x.low > 0 && x.low < x.high * 0.2 && !picture.log_x) x.low = 0;
  if (x.low >= x.high) x.pad(0.5);
  const Range y = y_range(picture);
  const Frame frame = frame_of(size, cells);
  chart.script = header(chart, frame, x, y, picture.x_title, !wide);
  if (picture.log_x) chart.script += "set logscale x\n";
  for (size_t i = 0; i < picture.levels.size(); ++i) {
    chart.script += fmt::format("set arrow from {},{} to {},{} nohead lw 1.2 dt 2 lc rgb '{}'\n",
                                x.low, picture.levels[i].bits_per_byte, x.high,
                                picture.levels[i].bits_per_byte, color_code(ChartColor::kBaseline));
  }
  if (wide) add_end_labels(chart, labels, y, frame);
  std::string bands, lines;
  for (size_t i = 0; i < picture.strokes.size(); ++i) {
    const Stroke& stroke = picture.strokes[i];
    const std::string data = fmt::format("d{}", i), color = color_code(stroke.color);
    chart.script += data_block(data, *stroke.band);
    if (!stroke.filled) continue;
    bands += fmt::format(
        ", ${} using 1:3:4 with filledcurves fs transparent solid 0.16 noborder lc rgb '{}'", data,
        color);
    chart.plots.push_back({.kind = "band", .variant = stroke.variant, .title = ""});
  }
  for (size_t i = 0; i < picture.strokes.size(); ++i) {
    const Stroke& stroke = picture.strokes[i];
    const std::string style = stroke.points ? "linespoints pt 7 ps 0.45" : "lines";
    lines += fmt::format(", $d{} using 1:2 with {} lw {} lc rgb '{}'", i, style, stroke.width,
                         color_code(stroke.color));
    chart.plots.push_back({.kind = stroke.kind, .variant = stroke.variant, .title = stroke.title});
  }
  chart.script += "plot " + (bands + lines).substr(2) + "\n";
  return chart;
}

}  // namespace

int64_t chart_width(ChartSize size) {
  return size == ChartSize::full ? 1120 : size == ChartSize::wide ? 560 : 340;
}

int series_of(const CompareResult& result, size_t variant) {
  if (result.variants[variant].name == result.reference) return 0;
  int series = 1;
  for (size_t v = 0; v < variant; ++v) series += result.variants[v].name != result.reference;
  // The reference keeps the first colour for itself.
  return (series - 1) % (kSeriesColors - 1) + 1;
}

double top_without_start(const std::vector<Band>& bands) {
  double end = 0, top = kNotANumber;
  for (const Band& band : bands) end = std::max(end, band.x.back());
  for (const Band& band : bands) {
    for (size_t i = 0; i < band.x.size(); ++i) {
      if (band.x[i] >= kStartShare * end) top = std::fmax(top, band.mean[i]);
    }
  }
  return top;
}

GnuplotChart curve_chart(const CompareResult& result, const CurveChart& what, ChartSize size) {
  Picture picture{
      .label = what.label, .x_title = what.x_title, .strokes = {}, .levels = {}, .top = what.top};
  for (const CompareBaseline& level : what.levels) {
    if (std::isfinite(level.bits_per_byte)) picture.levels.push_back(level);
  }
  for (const Band& band : what.bands) {
    const CompareVariant& variant = result.variants[band.variant];
    picture.strokes.push_back({.band = &band,
                               .color = ChartColor::kSeries + series_of(result, band.variant),
                               .kind = "curve",
                               .variant = variant.name,
                               .title = variant.name,
                               .name = variant.name,
                               .filled = variant.runs.size() > 1,
                               .points = what.with_points});
  }
  return draw(picture, size);
}

std::vector<Band> scaling_bands(const ScalingStudy& study) {
  std::vector<Band> bands;
  for (const ScalingCurve& curve : study.curves) {
    std::vector<Line> lines;
    for (const ScalingLine& seed : curve.seeds) {
      lines.push_back(seed.line);
      for (double& x : lines.back().x) x /= 1e3;
    }
    bands.push_back(combine(curve.variant, lines));
  }
  return bands;
}

GnuplotChart scaling_chart(const CompareResult& result, const ScalingStudy& study, ChartSize size) {
  const std::string axis(enum_names(study.axis)[static_cast<size_t>(study.axis)]);
  Picture picture{.label = "Bits per byte over " + axis,
                  .x_title = "thousand " + axis,
                  .strokes = {},
                  .levels = {},
                  .log_x = true};
  const std::vector<Band> bands = scaling_bands(study);
  for (size_t i = 0; i < bands.size(); ++i) {
    picture.strokes.push_back({.band = &bands[i],
                               .color = ChartColor::kSeries + static_cast<int>(i % kSeriesColors),
                               .kind = "curve",
                               .variant = result.variants[bands[i].variant].name,
                               .title = study.curves[i].family,
                               .name = study.curves[i].family,
                               .filled = study.curves[i].seeds.size() > 1,
                               .points = true});
  }
  return draw(picture, size);
}

GnuplotChart temperature_chart(const CompareVariant& variant, const std::vector<Band>& layers,
                               ChartSize size) {
  Picture picture{
      .label = "Temperature of each layer of " + single_line(variant.name) + " over training",
      .x_title = "step",
      .strokes = {},
      .levels = {}};
  const size_t last = std::max<size_t>(layers.size(), 2) - 1;
  const size_t named_every = (layers.size() + kMostLabels - 1) / kMostLabels;
  for (size_t i = 0; i < layers.size(); ++i) {
    const int shade = static_cast<int>(i * (kLayerColors - 1) / last);
    const std::string name = fmt::format("layer {}", layers[i].variant);
    picture.strokes.push_back({.band = &layers[i],
                               .color = ChartColor::kLayers + shade,
                               .kind = "layer",
                               .variant = variant.name,
                               .title = name,
                               .name = i % named_every == 0 ? name : "",
                               .filled = variant.runs.size() > 1});
  }
  return draw(picture, size);
}

}  // namespace fovea
