// Runs gnuplot and turns its SVG into one that fits a page: colours of the theme, names of
// variants, no ids.
//
// Texts of users never reach gnuplot: a script holds placeholders that are replaced, escaped, in
// the finished SVG. So there is nothing to quote, and no text can be a gnuplot command or markup.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

/// Colours of a chart. A script writes color_code(role); the SVG then says `var(--name)`.
struct ChartColor {
  static constexpr int kText = 0, kMuted = 1, kGrid = 2, kSurface = 3, kBaseline = 4, kSeries = 10,
                       kLayers = 20;
};
/// "#0a0bNN", the stand-in for a role; series i is kSeries + i, shade i of the layers kLayers + i.
std::string color_code(int role);
/// "--chart-text", "--series-3".
std::string color_variable(int role);
/// Series beyond this many share colours.
inline constexpr int kSeriesColors = 8;
/// Shades from the first layer to the last.
inline constexpr int kLayerColors = 8;

/// Kind, variant and title of the n-th `plot` element of a script.
struct PlotTag {
  std::string kind;     // CSS class: "curve", "band", "bar", ...
  std::string variant;  // data-variant; empty for none
  std::string title;    // shown when the pointer rests on it; empty for none
};

/// A chart before gnuplot has run.
struct GnuplotChart {
  int64_t width = 560, height = 340;    // of the viewBox
  std::string script = "";              // without terminal and output
  std::vector<std::string> texts = {};  // placeholder(i) in the script stands for texts[i]
  std::vector<PlotTag> plots = {};
  std::string label = "";  // what the chart shows, for those who cannot see it

  /// Adds a text and returns its placeholder.
  std::string text(std::string value);
};

struct GnuplotRunner {
  std::string program = "gnuplot";
  double timeout_seconds = 20;

  /// The clean SVG element. UnsupportedError if the program does not exist (the message says how to
  /// install it); IoError if it fails, with what it said, or if it takes too long.
  std::string svg(const GnuplotChart& chart) const;
  /// The output of gnuplot itself.
  std::string run(std::string_view script) const;
};

/// Turns gnuplot's own SVG into one for the page; svg() without the program.
std::string clean_svg(std::string_view raw, const GnuplotChart& chart);

}  // namespace fovea
