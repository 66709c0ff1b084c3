// Layout of text tables.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/table.h"

#include <algorithm>
#include <numeric>

#include "fovea/base/error.h"
#include "fovea/report/format.h"

namespace fovea {
namespace {

constexpr int64_t kSmallestShrunk = 12;
constexpr int64_t kWidestNote = 100;  // longer lines of prose are hard to read
constexpr std::string_view kGap = "  ";

void append_cell(std::string& line, const std::string& text, int64_t width, bool right) {
  const std::string cell = shorten(text, width);
  const auto padding = static_cast<size_t>(std::max<int64_t>(width - display_width(cell), 0));
  if (right) line.append(padding, ' ');
  line += cell;
  if (!right) line.append(padding, ' ');
}

void end_line(std::string& out, std::string& line) {
  line.erase(line.find_last_not_of(' ') + 1);
  out += line + "\n";
  line.clear();
}

}  // namespace

/// Which columns are shown, and how wide.
struct TextTable::Layout {
  std::vector<size_t> shown;
  std::vector<int64_t> widths;  // of all columns
  std::vector<std::string> left_out;

  int64_t total() const {
    int64_t sum = 0;
    for (const size_t column : shown) sum += widths[column] + static_cast<int64_t>(kGap.size());
    return sum - (shown.empty() ? 0 : static_cast<int64_t>(kGap.size()));
  }
};

TextTable::TextTable(std::vector<TableColumn> columns) : columns_(std::move(columns)) {}

void TextTable::add_row(std::vector<std::string> cells) {
  require<UsageError>(cells.size() == columns_.size(), "table",
                      "expected {} cells in a row; got {}", columns_.size(), cells.size());
  for (std::string& cell : cells) cell = single_line(cell);
  rows_.push_back(std::move(cells));
}

void TextTable::add_rule() { rows_.emplace_back(); }

void TextTable::add_note(std::string note) { notes_.push_back(single_line(note)); }

TextTable::Layout TextTable::lay_out(int64_t width) const {
  Layout layout;
  layout.shown.resize(columns_.size());
  std::iota(layout.shown.begin(), layout.shown.end(), size_t{0});
  for (size_t c = 0; c < columns_.size(); ++c) {
    int64_t widest = display_width(columns_[c].title);
    for (const auto& row : rows_) {
      if (!row.empty()) widest = std::max(widest, display_width(row[c]));
    }
    layout.widths.push_back(widest);
  }
  if (width <= 0) return layout;
  const auto shrink = [&] {
    for (const size_t c : layout.shown) {
      const int64_t excess = layout.total() - width;
      if (excess <= 0 || !columns_[c].shrinks) continue;
      layout.widths[c] =
          std::max(std::min(kSmallestShrunk, layout.widths[c]), layout.widths[c] - excess);
    }
  };
  const std::vector<int64_t> natural = layout.widths;
  shrink();
  while (layout.total() > width) {
    const auto least = std::min_element(
        layout.shown.begin(), layout.shown.end(),
        [&](size_t a, size_t b) { return columns_[a].importance < columns_[b].importance; });
    if (least == layout.shown.end() || columns_[*least].importance >= 1000) break;
    layout.left_out.push_back(columns_[*least].title);
    layout.shown.erase(least);
    layout.widths = natural;  // the room that became free goes back to the names
    shrink();
  }
  return layout;
}

std::string TextTable::render(int64_t width) const {
  const Layout layout = lay_out(width);
  std::string out, line;
  const auto put = [&](const auto& text_of) {
    for (size_t i = 0; i < layout.shown.size(); ++i) {
      const size_t c = layout.shown[i];
      if (i > 0) line += kGap;
      append_cell(line, text_of(c), layout.widths[c], columns_[c].right);
    }
    // Only a table of columns that may not go can still be too wide.
    if (width > 0) line = shorten(line, width);
    end_line(out, line);
  };
  const auto rule = [&] {
    for (int64_t i = 0; i < (width > 0 ? std::min(layout.total(), width) : layout.total()); ++i)
      line += "─";
    end_line(out, line);
  };
  put([&](size_t c) { return columns_[c].title; });
  rule();
  for (const auto& row : rows_) {
    if (row.empty()) {
      rule();
    } else {
      put([&](size_t c) { return row[c]; });
    }
  }
  std::vector<std::string> notes = notes_;
  if (!layout.left_out.empty()) {
    notes.push_back(
        fmt::format("Left out for want of room: {}.", fmt::join(layout.left_out, ", ")));
  }
  for (const std::string& note : notes) {
    for (const std::string& part :
         wrap_text(note, width > 0 ? std::min(width, kWidestNote) : kWidestNote))
      out += part + "\n";
  }
  return out;
}

}  // namespace fovea
