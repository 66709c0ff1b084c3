// Rows of whole numbers of different lengths, one after the other in one array.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fovea {

/// Entries of row r: values[begin[r]] ... values[begin[r + 1] - 1].
struct IntRows {
  std::span<const int32_t> begin, values;

  int64_t rows() const { return begin.empty() ? 0 : static_cast<int64_t>(begin.size()) - 1; }
  std::span<const int32_t> of(int64_t r) const {
    return values.subspan(begin[r], begin[r + 1] - begin[r]);
  }
  template <class F>
  void each_array(const F& f) {
    f(begin), f(values);
  }
};

/// The same while it grows.
struct IntRowList {
  std::vector<int32_t> begin{0}, values;

  /// Rows end behind the last value.
  void end_row() { begin.push_back(static_cast<int32_t>(values.size())); }
  void add_row(std::span<const int32_t> row) {
    values.insert(values.end(), row.begin(), row.end());
    end_row();
  }
  void clear() {
    begin.resize(1);
    values.clear();
  }
  IntRows view() const { return {begin, values}; }
  std::span<const int32_t> of(int64_t r) const { return view().of(r); }
};

}  // namespace fovea
