// Prefetches rows while a block of queries is computed: its results, and what the next block reads.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/pointwise/attention_product.h"

namespace fovea::kernels {
namespace {

/// ForwardBlock::prefetch, a few rows a tile.
template <class T>
class RowPrefetch {
 public:
  explicit RowPrefetch(const ForwardBlock<T>& block) : b_(block) {}

  /// Anew, for a pass of that many tiles.
  void begin(int64_t tiles) {
    int64_t rows = 0;
    for (int64_t n = 0; n < b_.prefetch_count; ++n) rows += b_.prefetch[n].count;
    per_tile_ = tiles > 0 ? (rows + tiles - 1) / tiles : 0;
    list_ = row_ = 0;
  }

  FOVEA_INLINE void fetch_some() {
    for (int64_t remaining = per_tile_; remaining > 0 && list_ < b_.prefetch_count; --remaining) {
      const PrefetchRows& rows = b_.prefetch[list_];
      const int64_t n = rows.index != nullptr ? rows.index[row_] - rows.first : row_;
      const char* const row = static_cast<const char*>(rows.rows) + n * rows.stride;
      for (int64_t byte = 0; byte < rows.bytes; byte += 64) __builtin_prefetch(row + byte, 0, 2);
      if (++row_ < rows.count) continue;
      row_ = 0;
      ++list_;
    }
  }

 private:
  const ForwardBlock<T>& b_;
  int64_t per_tile_ = 0, list_ = 0, row_ = 0;
};

}  // namespace
}  // namespace fovea::kernels
