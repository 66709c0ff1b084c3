// Heat maps: a score by length and depth, as the papers on long context draw them.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

/// The score of one question, or the mean of several, at a place.
struct HeatPoint {
  double length = 0.0;  ///< tokens, or another count that grows to the right
  double depth = 0.0;   ///< 0 = at the start ... 1 = at the end; downwards
  double value = 0.0;   ///< 0 ... 1
  int64_t items = 1;    ///< questions that the value is the mean of
};

/// Rows are depths, columns are lengths; the last row is every length's mean over all questions.
struct HeatMap {
  struct Cell {
    double value = 0.0;  ///< NaN where there is no question
    int64_t items = 0;
  };
  std::string title;  ///< "niah_single_2: string_match_all"
  std::string column_title = "length";
  std::vector<std::string> columns;
  std::vector<std::string> rows;  ///< "0.25", or "0.2-0.3" where depths are many
  std::vector<std::vector<Cell>> cells;
  std::vector<Cell> means;  ///< of the columns
};

/// Columns are the lengths that occur. Rows are the depths that occur; where these are more than
/// twelve, tenths of 0 ... 1 (1 itself belongs to the last). InputError for no point, a depth
/// outside 0 ... 1, or a place or items that are no numbers.
HeatMap make_heat_map(std::string title, std::span<const HeatPoint> points);

/// For a terminal: per cents, each with a shade of four. Lines of at most `width` cells; 0 means
/// unlimited.
std::string heat_map_text(const HeatMap& map, int64_t width);

/// An SVG element: the stronger the colour, the higher the score; colours of the page's theme, or
/// its own outside of a page.
std::string heat_map_svg(const HeatMap& map);

/// A page with the maps and their numbers as tables.
std::string heat_map_page(std::string_view title, std::span<const HeatMap> maps,
                          std::string_view code_version);

}  // namespace fovea
