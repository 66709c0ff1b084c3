// Products of the backward mixing kernels, with float32 or with pairs of bfloat16 as operands.
//
//   q.k, dO.v    rows of the strip x keys of a step       depth: columns of a head
//   dQ           rows of the strip x columns of a head    depth: keys of a step
//   dK, dV       keys of a step x columns of a head       depth: rows of the strip
//
// The depth of a product stands inside the words of pairs. So for dQ a row of a map is words of two
// neighbouring keys; for dK and dV two neighbouring rows are woven to words of both.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/mixing/mixing_gradient_maps.h"
#include "fovea/kernels/cpu/pointwise/attention_tiles.h"

namespace fovea::kernels {
namespace {

/// Words of a row of a step.
template <class P>
constexpr int64_t kStepWords = kStepKeys / P::kElements;

/// y[kRows][kStepKeys], `y_row` floats apart, = left[kRows x width] keys. `keys`: packed panels
/// (columns). Rows are multiplied with scale[kRows], or by 1 where it is null.
template <class P>
FOVEA_INLINE void find_product(const PackedWidth& width, const Word* left, const Word* keys,
                               const float* scale, float* y, int64_t y_row) {
  for (int64_t key = 0; key < kStepKeys; key += kPanel) {
    Float tile[kRows][2];
    panel_products<P>(tile, width, left, keys + key * width.pitch);
    for (int r = 0; scale != nullptr && r < kRows; ++r) {
      tile[r][0] = tile[r][0] * scale[r];
      tile[r][1] = tile[r][1] * scale[r];
    }
    store_tile(tile, y + key, y_row);
  }
}

/// Calls add.operator()<N>(column) for every tile of N vectors of columns.
template <class Add>
FOVEA_INLINE void each_tile(int64_t columns, const Add& add) {
  int64_t c = 0;
  for (; c + kPanel <= columns; c += kPanel) add.template operator()<2>(c);
  if (c < columns) add.template operator()<1>(c);
}

/// dQ: sums[kRows][columns] += left[kRows x kStepKeys] keys[kStepKeys x columns]. `left`: rows of
/// kStepWords words, `left_row` apart; `keys`: packed panels (rows).
template <class P>
FOVEA_INLINE void add_row_product(float* sums, int64_t sums_row, int64_t columns, const Word* left,
                                  int64_t left_row, const Word* keys) {
  constexpr int64_t kWords = kPanel / P::kElements;
  each_tile(columns, [&]<int N>(int64_t c) FOVEA_ALWAYS {
    prefetch_sums<kRows, N>(sums + kRows * sums_row + c, sums_row);
    add_to_sums<P, N>(sums + c, sums_row, true, [&](const auto& add) FOVEA_ALWAYS {
      for (int64_t at = 0; at < kStepWords<P>; at += kWords)
        add(kWords, left + at, left_row, 1, keys + at * columns + c * kWords);
    });
  });
}

/// Rows of a step as the left operand of a product over rows: word n of key j at
/// words + j * key + n * step.
struct KeyOperand {
  const Word* words = nullptr;
  int64_t key = 1, step = 0;
  int64_t first = 0, depth = 0;  ///< words of the right operand's rows
};

/// dK, dV: sums[kRows keys from `j` on][columns] += left right[depth x columns].
template <class P>
FOVEA_INLINE void add_key_product(float* sums, int64_t columns, const KeyOperand& left, int64_t j,
                                  const Word* right) {
  each_tile(columns, [&]<int N>(int64_t c) FOVEA_ALWAYS {
    prefetch_sums<kRows, N>(sums + kRows * columns + c, columns);
    add_to_sums<P, N>(sums + c, columns, true, [&](const auto& add) FOVEA_ALWAYS {
      add(left.depth, left.words + j * left.key, left.key, left.step, right + c, columns);
    });
  });
}

/// Two rows of `columns` bfloat16 as pairs of both.
FOVEA_INLINE void weave_rows(const Word* even, const Word* odd, int64_t columns, Word* to) {
  for (int64_t c = 0; c < columns; c += kPanel) {
    Float low, high;
    Pair::weave(load(even + c / 2), load(odd + c / 2), low, high);
    store(to + c, low);
    if (c + kLanes < columns) store(to + c + kLanes, high);
  }
}

/// Rows [begin, end) of a step as words, row r at words + r * kStepWords; times factor[r], unless
/// null. Their pairs of rows stand at woven + r / 2 * kStepKeys. A row that completes a pair counts
/// as zeros.
FOVEA_INLINE void pair_rows(const float* rows, int64_t row, int64_t begin, int64_t end,
                            const float* factor, Word* words, Word* woven) {
  constexpr int64_t kWords = kStepWords<Pair>;
  for (int64_t first = begin / 2 * 2; first < end; first += 2) {
    for (int64_t r = first; r < first + 2; ++r) {
      const Float x = broadcast(factor != nullptr ? factor[r] : 1.0f);
      for (int64_t c = 0; c < kStepKeys; c += kPanel) {
        const float* const from = rows + r * row + c;
        if (r < begin || r >= end)
          Pair::store_row(words + r * kWords + c / 2, Float{}, Float{});
        else
          Pair::store_row(words + r * kWords + c / 2, load(from) * x, load(from + kLanes) * x);
      }
    }
    weave_rows(words + first * kWords, words + (first + 1) * kWords, kStepKeys,
               woven + first / 2 * kStepKeys);
  }
}

}  // namespace
}  // namespace fovea::kernels
