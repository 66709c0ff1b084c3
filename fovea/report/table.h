// Aligned text tables for terminals: UTF-8 aware, and never wider than asked.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/report/compare_result.h"

namespace fovea {

/// One column. When a table is too wide, the shrinkable columns are cut with an ellipsis first,
/// never below 12 cells. Then columns leave in order of rising `importance`; the last line of the
/// table names the ones that left.
struct TableColumn {
  std::string title;
  bool right = false;     // numbers
  bool shrinks = false;   // names
  int importance = 1000;  // 1000: never dropped
};

class TextTable {
 public:
  explicit TextTable(std::vector<TableColumn> columns);

  /// As many cells as columns. Control characters become spaces.
  void add_row(std::vector<std::string> cells);
  /// A thin line before the next row.
  void add_rule();
  /// A line of text below the table, wrapped to the width.
  void add_note(std::string note);

  /// Lines ending in '\n', at most `width` cells each; 0 means unlimited.
  std::string render(int64_t width) const;

 private:
  struct Layout;
  Layout lay_out(int64_t width) const;

  std::vector<TableColumn> columns_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a rule
  std::vector<std::string> notes_;
};

/// The table that `fovea compare` prints: baselines and variants, with the rule of the verdict
/// below it.
std::string compare_table(const CompareResult& result, int64_t width);

/// The text samples, one paragraph per variant.
std::string compare_samples(const CompareResult& result, int64_t width);

}  // namespace fovea
