// Products of packed operands by vectors or by matrix tiles.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/pointwise/attention_pack.h"

namespace fovea::kernels {
namespace {

/// s = left[R rows] . right[columns of a panel, or with N = 1 of half of it] over a packed width.
/// Tiles make whole panels.
template <class P, int R, int N>
FOVEA_INLINE void panel_products(Float (&s)[R][N], const PackedWidth& width, const Word* left,
                                 const Word* right) {
  if constexpr (P::kTiles) {
    static_assert(N == 2 && R == kRows);
    TileSums<N> sums;
    sums.clear();
    sums.add(width.pitch / kTileWords, left, width.pitch, right, kPanel);
    sums.store(reinterpret_cast<float*>(s), kPanel);
  } else {
    clear(s);
    multiply_add<P>(s, width.words, left, width.pitch, 1, right, kPanel);
  }
}

/// Whether sums are prefetched where they lie in the second-level cache.
constexpr bool kPrefetchesSums = kTallRows != kRows;

/// The tile of sums that comes next.
template <int R, int N>
FOVEA_INLINE void prefetch_sums(const float* sums, int64_t columns) {
  constexpr int kLine = 16 / kLanes;  // vectors of a cache line
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < N; v += kLine) __builtin_prefetch(sums + r * columns + v * kLanes, 1);
  }
}

/// The sums of R rows and N vectors of columns at `at`, `row` floats apart: loads them (zeros
/// where they have not `begun`), calls `visit`, stores them. `visit` calls add(words, a, a_row,
/// a_step, b, b_row) for products over `words` words. Rows of b stand N vectors apart unless told.
template <class P, int N, int R = kRows, class Visit>
FOVEA_INLINE void add_to_sums(float* at, int64_t row, bool begun, const Visit& visit) {
  if constexpr (P::kTiles) {
    TileSums<N> sums;
    begun ? sums.load(at, row) : sums.clear();
    visit([&](int64_t words, const Word* a, int64_t a_row, int64_t, const Word* b,
              int64_t b_row = N * kLanes)
              FOVEA_ALWAYS { sums.add(words / kTileWords, a, a_row, b, b_row); });
    sums.store(at, row);
  } else {
    Float c[R][N];
    begun ? load_tile(c, at, row) : clear(c);
    visit([&](int64_t words, const Word* a, int64_t a_row, int64_t a_step, const Word* b,
              int64_t b_row = N * kLanes)
              FOVEA_ALWAYS { multiply_add<P>(c, words, a, a_row, a_step, b, b_row); });
    store_tile(c, at, row);
  }
}

}  // namespace
}  // namespace fovea::kernels
