// Small matrix products in one thread's caches, for performer_rows.h.
//
//   c[i][n] = (c[i][n] +) sum_k a(i, k) b[k][n]
//
// b and c lie row by row with padded rows; a has any strides, so that a factor may be read
// transposed. Everything has internal linkage (kernel_table.h says why).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/simd/lanes.h"

namespace fovea::kernels {
namespace {

// Rows of a tile whose sums fill the registers: 8 x 2 of 32, or 6 x 2 of 16, beside two vectors of
// b.
constexpr int kProductRows = kRegisters == 32 ? 8 : 6;

struct LeftFactor {
  const float* data = nullptr;
  int64_t row = 0, column = 1;  // strides
};

struct RightFactor {
  const float* data = nullptr;
  int64_t row = 0;
};

struct ProductResult {
  float* data = nullptr;
  int64_t row = 0;
  bool add = false;
};

struct Terms {
  int64_t begin = 0, end = 0;
};

template <int R, int V>
FOVEA_INLINE void product_tile(const LeftFactor& a, const RightFactor& b, const ProductResult& c,
                               Terms terms) {
  Float sum[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sum[r][v] = c.add ? load(c.data + r * c.row + v * kLanes) : Float{};
  for (int64_t k = terms.begin; k < terms.end; ++k) {
    Float x[V];
    for (int v = 0; v < V; ++v) x[v] = load(b.data + k * b.row + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float y = a.data[r * a.row + k * a.column];
      for (int v = 0; v < V; ++v) sum[r][v] += y * x[v];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(c.data + r * c.row + v * kLanes, sum[r][v]);
}

template <int V, int R = kProductRows>
FOVEA_INLINE void product_rows(int64_t rows, const LeftFactor& a, const RightFactor& b,
                               const ProductResult& c, Terms terms) {
  if (rows == R) return product_tile<R, V>(a, b, c, terms);
  if constexpr (R > 1) product_rows<V, R - 1>(rows, a, b, c, terms);
}

/// rows x columns numbers; columns are a multiple of 16. `terms(i, rows, n, columns)` says which k
/// count for a tile; a tile without any is left as it is.
template <class F>
void product(int64_t rows, int64_t columns, const LeftFactor& a, const RightFactor& b,
             const ProductResult& c, const F& terms) {
  for (int64_t n = 0; n < columns;) {
    const int64_t width = columns - n >= 2 * kLanes ? 2 * kLanes : kLanes;
    for (int64_t i = 0; i < rows; i += kProductRows) {
      const int64_t some = rows - i < kProductRows ? rows - i : kProductRows;
      const Terms k = terms(i, some, n, width);
      if (k.begin >= k.end) continue;
      const LeftFactor left{a.data + i * a.row, a.row, a.column};
      const RightFactor right{b.data + n, b.row};
      const ProductResult to{c.data + i * c.row + n, c.row, c.add};
      if (width == 2 * kLanes) {
        product_rows<2>(some, left, right, to, k);
      } else {
        product_rows<1>(some, left, right, to, k);
      }
    }
    n += width;
  }
}

/// All terms of every tile.
FOVEA_INLINE auto all_terms(int64_t count) {
  return [count](int64_t, int64_t, int64_t, int64_t) { return Terms{0, count}; };
}

}  // namespace
}  // namespace fovea::kernels
