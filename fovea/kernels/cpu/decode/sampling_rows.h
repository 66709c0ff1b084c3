// The loops of sampling.h, written once and compiled once per instruction set (kernel_table.h).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/common/vector_math.h"
#include "fovea/kernels/cpu/decode/sampling.h"
#include "fovea/kernels/cpu/kernel_table.h"
#include "fovea/kernels/cpu/pointwise/attention_product.h"

namespace fovea::kernels {
namespace {

// Vectors of a panel; rows whose sums are in registers at once: 8 vectors together.
constexpr int64_t kPanelVectors = kHashPanel / kLanes;
constexpr int64_t kSignRows = kPanelVectors < 8 ? 8 / kPanelVectors : 1;

template <int64_t rows>
FOVEA_INLINE void panel_signs(const float* directions, int64_t d, const float* x, uint32_t* words,
                              int64_t pitch) {
  Float sums[rows][kPanelVectors] = {};
  for (int64_t c = 0; c < d; ++c) {
    Float panel[kPanelVectors];
    for (int64_t v = 0; v < kPanelVectors; ++v)
      panel[v] = load(directions + c * kHashPanel + v * kLanes);
    for (int64_t r = 0; r < rows; ++r) {
      const Float number = broadcast(x[r * d + c]);
      for (int64_t v = 0; v < kPanelVectors; ++v) sums[r][v] = sums[r][v] + number * panel[v];
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    float products[kHashPanel];
    for (int64_t v = 0; v < kPanelVectors; ++v) store(products + v * kLanes, sums[r][v]);
    uint32_t word = 0;
#pragma omp simd reduction(| : word)
    for (int64_t n = 0; n < kHashPanel; ++n)
      word |= static_cast<uint32_t>(products[n] > 0.0f ? 1 : 0) << n;
    words[r * pitch] = word;
  }
}

inline void signs(const HashRule& rule, const float* rows, int64_t count, uint32_t* words) {
  const int64_t d = rule.head_dim, panels = rule.panels(), pitch = panels + 1;
  for (int64_t r = 0; r < count; ++r) words[r * pitch + panels] = 0;
  for (int64_t p = 0; p < panels; ++p) {
    const float* const directions = rule.directions + p * d * kHashPanel;
    int64_t r = 0;
    for (; r + kSignRows <= count; r += kSignRows)
      panel_signs<kSignRows>(directions, d, rows + r * d, words + r * pitch + p, pitch);
    for (; r < count; ++r)
      panel_signs<1>(directions, d, rows + r * d, words + r * pitch + p, pitch);
  }
}

// Keys whose log-weights are computed together: what vectors cannot read side by side is collected
// in between, key by key.
constexpr int64_t kWeighed = 128;

/// Adds the log-weights of n keys, at most kWeighed, to their logits x; `cosines` to the query. The
/// nodes beside w give values and slopes of a cubic. A cosine that is no number counts as 1.
FOVEA_INLINE void add_log_weights(const float* curve, const float* cosines, int64_t n,
                                  float* logits) {
  constexpr float kMost = 0.99999988f;  // the angle has a derivative up to here
  alignas(64) int32_t first[kWeighed];
  alignas(64) float places[kWeighed], nodes[4][kWeighed];
  const float* __restrict cosine = cosines;
  float* __restrict x = logits;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float size = cosine[i] < 0.0f ? -cosine[i] : cosine[i];
    const float near = size < kMost ? size : kMost;
    const float w =
        __builtin_sqrtf(__builtin_sqrtf(1.0f - near)) * static_cast<float>(kWeightCells);
    const int32_t whole = static_cast<int32_t>(w);
    const int32_t cell = whole < kWeightCells ? whole : static_cast<int32_t>(kWeightCells) - 1;
    first[i] = 2 * (cell + (cosine[i] < 0.0f ? static_cast<int32_t>(kWeightCells) + 1 : 0));
    places[i] = w - static_cast<float>(cell);
  }
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 4
    for (int64_t c = 0; c < 4; ++c) nodes[c][i] = curve[first[i] + c];
  }
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float t = places[i], u = 1.0f - t, y0 = nodes[0][i], s0 = nodes[1][i], y1 = nodes[2][i],
                s1 = nodes[3][i];
    x[i] += y0 + t * t * (3.0f - 2.0f * t) * (y1 - y0) + t * u * (u * s0 - t * s1);
  }
}

inline WeightTotal sampled_weights(const SampledProducts& p) {
  const FlushDenormals flush;
  constexpr float kSmallest = 1e-30f;  // of lengths that are divided by
  const float scale = p.scale, with_centre = p.with_centre, query = p.query_length;
  for (int64_t begin = 0; begin < p.sampled; begin += kWeighed) {
    const int64_t rest = p.sampled - begin, n = rest < kWeighed ? rest : kWeighed;
    alignas(64) float lengths[kWeighed], cosines[kWeighed];
    float* __restrict x = p.products + begin;
    for (int64_t i = 0; i < n; ++i) lengths[i] = p.lengths[p.list[begin + i]];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const float both = query * lengths[i];
      cosines[i] = (x[i] - with_centre) / (both > kSmallest ? both : kSmallest);
      x[i] *= scale;
    }
    add_log_weights(p.log_weights, cosines, n, x);
  }
  float* __restrict x = p.products;
#pragma omp simd
  for (int64_t n = p.sampled; n < p.count; ++n) x[n] *= scale;
  float top = -kInfinity;
#pragma omp simd reduction(max : top)
  for (int64_t n = 0; n < p.count; ++n) top = x[n] > top ? x[n] : top;
  float total = 0.0f;
#pragma omp simd reduction(+ : total)
  for (int64_t n = 0; n < p.count; ++n) {
    x[n] = fast_exp(x[n] - top);
    total += x[n];
  }
  return {.top = top, .total = total};
}

// Words of a part, as vectors.
constexpr int64_t kAskedWords = kAskedKeys / kHashPanel, kWordVectors = kAskedWords / kLanes;
static_assert(kAskedWords % kLanes == 0);

/// Bit i: key i lies above the bound.
FOVEA_INLINE uint32_t keys_above(const float* keys, float bound) {
  uint32_t word = 0;
  for (int64_t v = 0; v < kHashPanel / kLanes; ++v)
    word |= bits_above(keys + v * kLanes, bound) << (v * kLanes);
  return word;
}

/// Whether a table agrees on a row's pairs, and whether a second one does.
template <int64_t heads>
struct RowCollisions {
  Int once[heads][kWordVectors] = {}, twice[heads][kWordVectors] = {};
};

template <int64_t heads>
FOVEA_INLINE void collide(const CentredHashes& p, int64_t head, const AskedPart& part) {
  RowCollisions<heads> rows[kAskedRows];
  int32_t sides[kMostHashBits][kAskedWords] = {};
  const int64_t hashes = p.hashes();
  for (int64_t first = 0; first < hashes; first += p.bits) {
    const float* const keys = p.of_keys + first * p.pitch + part.begin;
    for (int64_t r = 0; r < part.rows; ++r) {
      const int64_t row = part.first_row + r;
      const float* const centre = p.of_centres + row * hashes + first;
      for (int64_t bit = 0; bit < p.bits; ++bit) {
        for (int64_t n = 0; n < part.words; ++n)
          sides[bit][n] =
              static_cast<int32_t>(keys_above(keys + bit * p.pitch + n * kHashPanel, centre[bit]));
      }
      for (int64_t h = 0; h < heads; ++h) {
        const int32_t* const query = p.of_queries + ((head + h) * p.rows + row) * hashes + first;
        for (int64_t v = 0; v < kWordVectors; ++v) {
          Int differ{};
          for (int64_t bit = 0; bit < p.bits; ++bit)
            differ |= load(sides[bit] + v * kLanes) ^ broadcast(query[bit]);
          rows[r].twice[h][v] |= rows[r].once[h][v] & ~differ;
          rows[r].once[h][v] |= ~differ;
        }
      }
    }
  }
  for (int64_t r = 0; r < part.rows; ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      uint32_t* const to = p.twice_of(head + h, part.first_row + r) + part.begin / kHashPanel;
      __builtin_memcpy(to, rows[r].twice[h], static_cast<size_t>(part.words) * sizeof(*to));
    }
  }
}

inline void collisions(const CentredHashes& p, const AskedPart& part) {
  int64_t h = 0;
  for (; h + 3 <= p.heads; h += 3) collide<3>(p, h, part);
  if (h + 2 == p.heads) collide<2>(p, h, part);
  if (h + 1 == p.heads) collide<1>(p, h, part);
}

constexpr int64_t kCountsTogether = 64;  // as bits_from_two() takes them

/// number + n of all set bits n, in order; returns how many. Writes kFoundRoom numbers behind them.
/// Hardly a branch: how many there are cannot be predicted.
FOVEA_INLINE int64_t list_bits(uint64_t bits, int32_t number, int32_t* found) {
  constexpr int64_t kAtOnce = 4;
  static_assert(kAtOnce <= kFoundRoom);
  constexpr uint64_t kLast = uint64_t{1} << 63;  // __builtin_ctzll() needs a bit
  const int64_t count = __builtin_popcountll(bits);
  const auto next = [&]() FOVEA_ALWAYS {
    const int32_t bit = __builtin_ctzll(bits | kLast);
    bits &= bits - 1;
    return number + bit;
  };
  for (int64_t n = 0; n < kAtOnce; ++n) found[n] = next();
  for (int64_t n = kAtOnce; n < count; ++n) found[n] = next();
  return count;
}

inline int64_t counted_twice(const uint8_t* counts, int64_t keys, int32_t first, int32_t* found) {
  int64_t met = 0;
  for (int64_t key = 0; key < keys; key += kCountsTogether) {
    uint8_t last[kCountsTogether] = {};
    const bool whole = key + kCountsTogether <= keys;
    if (!whole) __builtin_memcpy(last, counts + key, static_cast<size_t>(keys - key));
    met += list_bits(bits_from_two(whole ? counts + key : last), first + static_cast<int32_t>(key),
                     found + met);
  }
  return met;
}

template <Isa isa>
constexpr SamplingTable table_of() {
  return {signs, sampled_weights, counted_twice, collisions};
}

}  // namespace
}  // namespace fovea::kernels
