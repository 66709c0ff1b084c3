// The loops of selector.h, written once and compiled once per instruction set (kernel_table.h).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/decode/selector.h"
#include "fovea/kernels/cpu/decode/selector_components.h"
#include "fovea/kernels/cpu/kernel_table.h"

namespace fovea::kernels {
namespace {

// Bytes of a line of memory.
constexpr int64_t kFetchBytes = 64;

template <class T>
FOVEA_INLINE void fetch_run(const T* keys, int64_t count) {
  const char* const bytes = reinterpret_cast<const char*>(keys);
  for (int64_t n = 0; n < count * static_cast<int64_t>(sizeof(T)); n += kFetchBytes)
    __builtin_prefetch(bytes + n, 0, 2);
}

inline void logit_weights(const RowWeights& rows) {
  const FlushDenormals flush;
  const int64_t tiles = rows.tiles();
  for (int64_t h = 0; h < rows.heads; ++h) {
    float* const logits = rows.weights + h * rows.pitch;
    float* const references = rows.factors + h * tiles;
    RunningWeights state;
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t begin = t * kWeightTile, rest = rows.length - begin;
      weigh_tile(logits + begin, rest < kWeightTile ? rest : kWeightTile, kLog2E, state);
      references[t] = state.reference;
    }
    finish_factors(references, tiles, kLog2E, state);
  }
}

inline void scores(const RowWeights& rows, int64_t length, float* to, float* maxima) {
  static_assert(kWeightTile % kScoreBlock == 0 && kScoreBlock % kLanes == 0);
  const int64_t tiles = rows.tiles(), whole = length / kScoreBlock * kScoreBlock;
  const auto factor = [&](int64_t h, int64_t j) {
    return rows.factors[h * tiles + j / kWeightTile];
  };
  for (int64_t begin = 0; begin < whole; begin += kScoreBlock) {
    Float top = broadcast(-kInfinity);
    for (int64_t j = begin; j < begin + kScoreBlock; j += kLanes) {
      Float score{};
      for (int64_t h = 0; h < rows.heads; ++h)
        score = score + load(rows.weights + h * rows.pitch + j) * broadcast(factor(h, j));
      store(to + j, score);
      top = larger(top, score);
    }
    maxima[begin / kScoreBlock] = largest(top);
  }
  if (whole == length) return;
  float top = -kInfinity;
  for (int64_t j = whole; j < length; ++j) {
    float score = 0.0f;
    for (int64_t h = 0; h < rows.heads; ++h)
      score += rows.weights[h * rows.pitch + j] * factor(h, j);
    to[j] = score;
    top = score > top ? score : top;
  }
  maxima[whole / kScoreBlock] = top;
}

constexpr int32_t kLeast = -0x7FFFFFFF - 1;

// Whole numbers in the order of floats, where -0 is 0 and NaN the least: a block whose largest is a
// number has a score that reaches it.
FOVEA_INLINE int32_t ordered(float x) {
  const int32_t bits = __builtin_bit_cast(int32_t, x + 0.0f);
  return x != x ? kLeast : bits ^ ((bits >> 31) & 0x7FFFFFFF);
}

// A bound that at least `count` of n numbers reach: one that at most `enough` do, else the largest.
inline int32_t reached_by(const int32_t* numbers, int64_t n, int64_t count, int64_t enough) {
  const int32_t* __restrict x = numbers;
  int32_t least = x[0], most = x[0];
#pragma omp simd reduction(min : least) reduction(max : most)
  for (int64_t j = 0; j < n; ++j) {
    least = x[j] < least ? x[j] : least;
    most = x[j] > most ? x[j] : most;
  }
  int64_t low = least, high = most;  // `count` reach low, fewer reach high + 1
  while (low < high) {
    const auto middle = static_cast<int32_t>(low + (high - low + 1) / 2);
    int32_t reached = 0;
#pragma omp simd reduction(+ : reached)
    for (int64_t j = 0; j < n; ++j) reached += x[j] >= middle ? 1 : 0;
    if (reached < count) {
      high = middle - 1;
    } else {
      low = middle;
      if (reached <= enough) break;
    }
  }
  return static_cast<int32_t>(low);
}

// As many blocks as are wanted have a largest score of at least the bound, so no smaller one
// counts.
inline void largest_of_blocks(const float* values, const float* maxima, int64_t length,
                              int64_t count, int32_t* memory, int32_t* list) {
  const int64_t blocks = (length + kScoreBlock - 1) / kScoreBlock;
  int32_t *const tops = memory, *const some = tops + blocks, *const order = some + blocks,
                 *const places = order + length;
  int32_t bound = kLeast;
  if (blocks > count) {
    for (int64_t n = 0; n < blocks; ++n) tops[n] = ordered(maxima[n]);
    bound = reached_by(tops, blocks, count, count + count / 8);
  }
  int64_t chosen_blocks = 0, found = 0;
  for (int64_t n = 0; n < blocks; ++n) {
    some[chosen_blocks] = static_cast<int32_t>(n);
    chosen_blocks += blocks <= count || tops[n] >= bound ? 1 : 0;
  }
  for (int64_t n = 0; n < chosen_blocks; ++n) {
    const int64_t begin = some[n] * kScoreBlock;
    const int64_t end = begin + kScoreBlock < length ? begin + kScoreBlock : length;
    for (int64_t j = begin; j < end; ++j) {
      order[found] = ordered(values[j]);
      places[found] = static_cast<int32_t>(j);
      found += order[found] >= bound ? 1 : 0;
    }
  }
  const int32_t least = reached_by(order, found, count, count);
  int64_t ties = count;
  for (int64_t n = 0; n < found; ++n) ties -= order[n] > least ? 1 : 0;
  for (int64_t n = 0, listed = 0; listed < count; ++n) {
    const bool tie = order[n] == least && ties > 0;
    ties -= tie ? 1 : 0;
    list[listed] = places[n];
    listed += tie || order[n] > least ? 1 : 0;
  }
}

template <class T>
void products(const float* query, const ListedRows<T>& rows, float* to) {
  const float* __restrict q = query;
  for (int64_t n = 0; n < rows.count; ++n) {
    if (n + kListedAhead < rows.count)
      fetch_run(rows.data + rows.list[n + kListedAhead] * rows.row, rows.width);
    const T* __restrict k = rows.data + rows.list[n] * rows.row;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < rows.width; ++c) sum += q[c] * to_float(k[c]);
    to[n] = sum;
  }
}

template <class T>
void weighted_sum(const float* weights, const ListedRows<T>& rows, float* to) {
  float* __restrict out = to;
  for (int64_t c = 0; c < rows.width; ++c) out[c] = 0;
  for (int64_t n = 0; n < rows.count; ++n) {
    if (n + kListedAhead < rows.count)
      fetch_run(rows.data + rows.list[n + kListedAhead] * rows.row, rows.width);
    const T* __restrict v = rows.data + rows.list[n] * rows.row;
    const float weight = weights[n];
#pragma omp simd
    for (int64_t c = 0; c < rows.width; ++c) out[c] += weight * to_float(v[c]);
  }
}

template <Isa isa, class T>
constexpr SelectorTable<T> table_of() {
  return {component_weights<T, VectorWords>,
          logit_weights,
          scores,
          largest_of_blocks,
          products<T>,
          weighted_sum<T>};
}

}  // namespace
}  // namespace fovea::kernels
