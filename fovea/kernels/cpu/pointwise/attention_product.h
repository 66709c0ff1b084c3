// Packed operands of the attention kernels and the one product that works on them.
//
// A word is 32 bits: one float32, or two neighbouring bfloat16. In words all layouts are the same
// for both, so every kernel is written once. A panel is kPanel rows of q, k, v or dO; its layouts:
//   natural  [kPanel][pitch]           the rows themselves (left operand: words are broadcast)
//   columns  [pitch][kPanel]           transposed (right operand of q.k: one lane, one row)
//   rows     [kPanel / E][columns]     cut into tiles of kPanel columns (right operand of P v: one
//                                      lane, one column; with bfloat16, E = 2 rows share a word)
// Rows and columns of padding are zeros.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/pointwise/row_state.h"
#include "fovea/kernels/cpu/simd/tiles.h"

namespace fovea::kernels {
namespace {

// kRows x 2 sums must fit the registers with two operands beside them. With tiles they are 2 x 2 of
// the 8 tiles (tiles.h), or 1 x 2 where a source says so.
constexpr int kRows = kRowsOfTiles != 0 ? kRowsOfTiles : kRegisters == 32 ? 8 : 4;
constexpr int kPanel = 2 * kLanes;  // keys (backward: queries) of one tile
// Rows of a tile where some of a block may have fewer. With 16 registers, 6 x 2 sums keep both
// multipliers busy; 4 x 2 wait for each other.
constexpr int kTallRows = kRows == 4 && kLanes == 8 ? 6 : kRows;

/// Rows in tiles of `tall` rows and of kRows at the end, so that no tile ends behind the rows'
/// multiple of kRows. Tiles behind count() have kRows, too.
template <int tall>
class RowTiles {
 public:
  constexpr explicit RowTiles(int64_t rows) {
    const int64_t all = (rows + kRows - 1) / kRows * kRows;
    tall_ = all / tall;
    while ((all - tall_ * tall) % kRows != 0) --tall_;
    count_ = static_cast<int>(tall_ + (all - tall_ * tall) / kRows);
  }

  constexpr int count() const { return count_; }
  constexpr bool is_tall(int64_t g) const { return tall == kRows || g < tall_; }
  constexpr int rows(int64_t g) const { return is_tall(g) ? tall : kRows; }
  /// The first row of tile g; of tile count(), the end of all.
  constexpr int64_t first(int64_t g) const {
    return is_tall(g) ? g * tall : tall_ * tall + (g - tall_) * kRows;
  }
  /// The tile of a row.
  constexpr int of(int64_t row) const {
    const int64_t rest = row - tall_ * tall;
    return static_cast<int>(rest < 0 ? row / tall : tall_ + rest / kRows);
  }

 private:
  int64_t tall_ = 0;
  int count_ = 0;
};

/// A number of rows as a type.
template <int R>
struct Rows {};

/// visit(Rows<R>) with the rows of tile g.
template <int tall, class Visit>
FOVEA_INLINE auto with_rows(const RowTiles<tall>& tiles, int64_t g, const Visit& visit) {
  if constexpr (tall != kRows)
    if (!tiles.is_tall(g)) return visit(Rows<kRows>{});
  return visit(Rows<tall>{});
}

/// c[R][N vectors] += a[R x depth words] b[depth x N vectors of words]. Word (i, k) of the left
/// operand is at a + i a_row + k a_step, and row k of the right one at b + k b_row.
template <class P, int R, int N>
FOVEA_INLINE void multiply_add(Float (&c)[R][N], int64_t depth, const Word* a, int64_t a_row,
                               int64_t a_step, const Word* b, int64_t b_row) {
#pragma GCC unroll 2
  for (int64_t k = 0; k < depth; ++k) {
    Float right[N];
#pragma GCC unroll 2
    for (int v = 0; v < N; ++v) right[v] = load(b + k * b_row + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Float left = broadcast(a[i * a_row + k * a_step]);
#pragma GCC unroll 2
      for (int v = 0; v < N; ++v) c[i][v] = P::multiply_add(left, right[v], c[i][v]);
    }
  }
}

template <int R, int N>
FOVEA_INLINE void clear(Float (&c)[R][N]) {
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < N; ++v) c[i][v] = Float{};
  }
}

template <int R, int N>
FOVEA_INLINE void load_tile(Float (&c)[R][N], const float* from, int64_t row) {
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < N; ++v) c[i][v] = load(from + i * row + v * kLanes);
  }
}

template <int R, int N>
FOVEA_INLINE void store_tile(const Float (&c)[R][N], float* to, int64_t row) {
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < N; ++v) store(to + i * row + v * kLanes, c[i][v]);
  }
}

}  // namespace
}  // namespace fovea::kernels
