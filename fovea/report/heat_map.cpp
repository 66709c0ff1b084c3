// Heat maps on a terminal and in a page.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "fovea/base/error.h"
#include "fovea/report/format.h"
#include "fovea/report/html_parts.h"
#include "fovea/report/table.h"

namespace fovea {
namespace {

using Cell = HeatMap::Cell;

constexpr size_t kMostRows = 12;  // depths beyond these are drawn in tenths
constexpr int kBins = 10;

// Pixels of the picture.
constexpr int64_t kCellWidth = 62, kCellHeight = 24, kLeft = 66, kTop = 26, kMeanGap = 6;

/// The row of a depth, and what the rows are called.
class DepthRows {
 public:
  explicit DepthRows(const std::set<double>& depths) {
    if (depths.size() <= kMostRows) exact_.assign(depths.begin(), depths.end());
  }
  size_t row(double depth) const {
    if (exact_.empty())
      // 1e-9: the depth 0.3 belongs to 0.3-0.4, whatever its last bit.
      return static_cast<size_t>(std::clamp(static_cast<int>(depth * kBins + 1e-9), 0, kBins - 1));
    return static_cast<size_t>(std::ranges::lower_bound(exact_, depth) - exact_.begin());
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const double depth : exact_) names.push_back(fmt::format("{:.2f}", depth));
    for (int k = 0; exact_.empty() && k < kBins; ++k)
      names.push_back(fmt::format("{:.1f}-{:.1f}", k / 10.0, (k + 1) / 10.0));
    return names;
  }

 private:
  std::vector<double> exact_;  // empty: tenths
};

void add(Cell& cell, const HeatPoint& point) {
  cell.value += point.value * static_cast<double>(point.items);
  cell.items += point.items;
}

void finish(Cell& cell) {
  cell.value = cell.items > 0 ? cell.value / static_cast<double>(cell.items)
                              : std::numeric_limits<double>::quiet_NaN();
}

void check_points(const std::string& title, std::span<const HeatPoint> points) {
  require<InputError>(!points.empty(), "heat map", "expected scores to draw for '{}'; got none",
                      title);
  for (const HeatPoint& p : points) {
    require<InputError>(
        p.depth >= 0.0 && p.depth <= 1.0 && std::isfinite(p.length) && p.items > 0, "heat map",
        "expected a depth of 0 to 1, a length and questions; got depth {}, length {}, {} questions",
        p.depth, p.length, p.items);
  }
}

std::string percent(const Cell& cell) {
  return cell.items == 0 ? "–" : fmt::format("{:.0f}", 100.0 * cell.value);
}

std::string shaded(const Cell& cell) {
  static constexpr std::array<std::string_view, 5> kShades{"·", "░", "▒", "▓", "█"};
  if (cell.items == 0) return "–  ";
  const auto shade = static_cast<size_t>(std::clamp(std::floor(cell.value * 4.0 + 1e-9), 0.0, 4.0));
  return fmt::format("{} {}", percent(cell), kShades[shade]);
}

std::string svg_text(const std::string& text, int64_t x, int64_t y, std::string_view anchor,
                     std::string_view color) {
  return fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"{}\" fill=\"{}\">{}</text>\n", x, y,
                     anchor, color, escape_html(text));
}

constexpr std::string_view kInk = "var(--chart-text,#1b1f24)",
                           kMuted = "var(--chart-muted,#5d636b)";

std::string svg_cell(const Cell& cell, int64_t x, int64_t y, const std::string& where) {
  const double value = cell.items == 0 ? 0.0 : std::clamp(cell.value, 0.0, 1.0);
  return fmt::format(
             "<g><title>{}: {} % of {} questions</title><rect x=\"{}\" y=\"{}\" width=\"{}\" "
             "height=\"{}\" rx=\"2\" fill=\"var(--series-1,#0067b1)\" fill-opacity=\"{:.3f}\"/>",
             escape_html(where), percent(cell), cell.items, x, y, kCellWidth - 2, kCellHeight - 2,
             // Never so strong that the number on it cannot be read, nor invisible at 0.
             0.04 + 0.56 * value) +
         svg_text(percent(cell), x + kCellWidth / 2 - 1, y + kCellHeight / 2 + 4, "middle", kInk) +
         "</g>\n";
}

NumberTable numbers_of(const HeatMap& map) {
  NumberTable table{{"depth"}, {}};
  for (const std::string& column : map.columns)
    table.columns.push_back(map.column_title + " " + column);
  const auto add_row = [&](const std::string& name, const std::vector<Cell>& cells) {
    std::vector<std::string> row{name};
    for (const Cell& cell : cells)
      row.push_back(fmt::format("{} % of {}", percent(cell), cell.items));
    table.rows.push_back(std::move(row));
  };
  for (size_t r = 0; r < map.rows.size(); ++r) add_row(map.rows[r], map.cells[r]);
  add_row("all", map.means);
  return table;
}

}  // namespace

HeatMap make_heat_map(std::string title, std::span<const HeatPoint> points) {
  check_points(title, points);
  std::set<double> lengths, depths;
  for (const HeatPoint& p : points) {
    lengths.insert(p.length);
    depths.insert(p.depth);
  }
  const DepthRows rows(depths);
  HeatMap map{
      .title = std::move(title), .columns = {}, .rows = rows.names(), .cells = {}, .means = {}};
  for (const double length : lengths) map.columns.push_back(fmt::format("{:.0f}", length));
  map.means.resize(lengths.size());
  map.cells.assign(map.rows.size(), std::vector<Cell>(lengths.size()));
  for (const HeatPoint& p : points) {
    const auto column = static_cast<size_t>(std::distance(lengths.begin(), lengths.find(p.length)));
    add(map.cells[rows.row(p.depth)][column], p);
    add(map.means[column], p);
  }
  for (auto& row : map.cells) std::ranges::for_each(row, finish);
  std::ranges::for_each(map.means, finish);
  return map;
}

std::string heat_map_text(const HeatMap& map, int64_t width) {
  std::vector<TableColumn> columns{{.title = "depth \\ " + map.column_title}};
  for (const std::string& column : map.columns)
    columns.push_back({.title = column + "  ", .right = true});
  TextTable table(columns);
  const auto add_row = [&](const std::string& name, const std::vector<Cell>& cells) {
    std::vector<std::string> row{name};
    for (const Cell& cell : cells) row.push_back(shaded(cell));
    table.add_row(std::move(row));
  };
  for (size_t r = 0; r < map.rows.size(); ++r) add_row(map.rows[r], map.cells[r]);
  table.add_rule();
  add_row("all", map.means);
  return single_line(map.title) + ", per cent\n" + table.render(width);
}

std::string heat_map_svg(const HeatMap& map) {
  const auto columns = static_cast<int64_t>(map.columns.size()),
             rows = static_cast<int64_t>(map.rows.size());
  const int64_t width = kLeft + columns * kCellWidth,
                height = kTop + (rows + 1) * kCellHeight + kMeanGap;
  std::string out = fmt::format(
      "<svg viewBox=\"0 0 {0} {1}\" role=\"img\" aria-label=\"{2}\" font-family=\"sans-serif\" "
      "font-size=\"12\" style=\"max-width:{0}px\" xmlns=\"http://www.w3.org/2000/svg\">\n",
      width, height, escape_html(map.title));
  for (int64_t c = 0; c < columns; ++c)
    out += svg_text(map.columns[static_cast<size_t>(c)],
                    kLeft + c * kCellWidth + kCellWidth / 2 - 1, kTop - 8, "middle", kMuted);
  const auto add_row = [&](const std::string& name, const std::vector<Cell>& cells, int64_t y) {
    out += svg_text(name, kLeft - 8, y + kCellHeight / 2 + 4, "end", kMuted);
    for (int64_t c = 0; c < columns; ++c) {
      const auto column = static_cast<size_t>(c);
      out += svg_cell(cells[column], kLeft + c * kCellWidth, y,
                      fmt::format("{} {}, depth {}", map.column_title, map.columns[column], name));
    }
  };
  for (int64_t r = 0; r < rows; ++r)
    add_row(map.rows[static_cast<size_t>(r)], map.cells[static_cast<size_t>(r)],
            kTop + r * kCellHeight);
  add_row("all", map.means, kTop + rows * kCellHeight + kMeanGap);
  return out + "</svg>\n";
}

std::string heat_map_page(std::string_view title, std::span<const HeatMap> maps,
                          std::string_view code_version) {
  std::string body = fmt::format(
      "<header class=\"top\"><div class=\"kicker\"><span>Fovea · tasks</span><button "
      "type=\"button\" id=\"theme\">Dark</button></div>\n<h1>{}</h1>\n<p class=\"lead\">Score by "
      "length (to the right) and depth of what is asked (downwards), in per cent.</p>\n</header>\n",
      escape_html(title));
  for (const HeatMap& map : maps) {
    body +=
        fmt::format("<section><h2>{}</h2>\n<div class=\"card\">{}</div>\n{}</section>\n",
                    escape_html(map.title), heat_map_svg(map), number_table_html(numbers_of(map)));
  }
  return page_html(title, code_version, body);
}

}  // namespace fovea
