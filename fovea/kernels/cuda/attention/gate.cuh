// The soft gate of Focus on fragments: z_ij = offset + sum_k query_ik key_jk by mma.sync, as
// precise as float32 factors split into two bfloat16 numbers, high and low, are.
//
// A chunk is 8 columns. Factors are read as they lie in fragments, straight from memory: all heads
// and tiles of a row of the batch read the same few bytes, 64 a token and chunk.
//   rows   [token][chunk][4]: the high halves of columns 2t, 2t + 1, then their low halves
//   pairs  [chunk][token / 2][8]: the high halves of one column of two tokens, then the low ones
// rows multiply over columns (z); pairs multiply over tokens (gradients).
//
// In fragments of a tile, `own` is the side of the 16 rows of a block, `other` that of the columns:
// queries and keys in the forward pass, keys and queries in the backward pass.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "fovea/kernels/cuda/attention/band.cuh"
#include "fovea/kernels/cuda/attention/problem.h"
#include "fovea/kernels/cuda/device.cuh"

namespace fovea::kernels::cuda {

FOVEA_DEVICE uint32_t low_word(uint64_t x) { return static_cast<uint32_t>(x); }
FOVEA_DEVICE uint32_t high_word(uint64_t x) { return static_cast<uint32_t>(x >> 32); }

FOVEA_DEVICE float sigmoid(float z) { return divide_fast(1.0f, 1.0f + exp2_fast(z * -kLog2e)); }
FOVEA_DEVICE float log2_sigmoid(float z) {
  const float z2 = z * kLog2e;
  return min_of(z2, 0.0f) - log2_fast(1.0f + exp2_fast(-absolute(z2)));
}

template <GateKind kKind>
struct GateIs {
  static constexpr GateKind value = kKind;
};

/// Whether the pairs of a tile are local, which the gate leaves alone: all, some, none.
enum class Reach { near, mixed, far };

// Keys of query row i at or after `from`, or before `to`, are local.
struct LocalKeys {
  int from, to;
  FOVEA_DEVICE bool has(int j) const { return j >= from || j < to; }
};
template <class Visible>
FOVEA_DEVICE LocalKeys local_keys(const Problem& p, const Place& at, int i) {
  return {p.query_offset + i - p.gate_window + 1, Visible::document(p, at, i) + p.gate_sinks};
}

// Of queries [i0, i0 + rows) and keys [j0, j0 + keys).
template <class Visible>
FOVEA_DEVICE Reach gate_reach(const Problem& p, const Place& at, int i0, int rows, int j0,
                              int keys) {
  const LocalKeys first = local_keys<Visible>(p, at, i0),
                  last = local_keys<Visible>(p, at, i0 + rows - 1);
  if (j0 >= last.from) return Reach::near;
  // Keys before the last row's document, which rows of an earlier one see, count as its sinks here.
  return j0 + keys <= first.from && j0 >= last.to ? Reach::far : Reach::mixed;
}

// kBlocks: blocks of 8 columns whose products overlap.
template <int kChunks, int kBlocks>
struct GateTile {
  // Left operands of 16 tokens from `first`.
  FOVEA_DEVICE static void own_rows(uint32_t (&a)[kChunks][4], const GateFactors& f, int b,
                                    int first) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint64_t* rows = f.rows + b * f.batch;
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
      const uint64_t x = load_read_only(rows + row_at(first + g, n) + t),
                     y = load_read_only(rows + row_at(first + g + 8, n) + t);
      a[n][0] = low_word(x);
      a[n][1] = low_word(y);
      a[n][2] = high_word(x);
      a[n][3] = high_word(y);
    }
  }

  // z of 16 own tokens and kBlocks times 8 others from `first`.
  FOVEA_DEVICE static void products(float (&z)[kBlocks][4], const uint32_t (&own)[kChunks][4],
                                    const GateFactors& f, int b, int first, float offset) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint64_t* rows = f.rows + b * f.batch;
    uint64_t other[kBlocks][kChunks];
#pragma unroll
    for (int x = 0; x < kBlocks; ++x)
#pragma unroll
      for (int n = 0; n < kChunks; ++n)
        other[x][n] = load_read_only(rows + row_at(first + x * 8 + g, n) + t);
#pragma unroll
    for (int x = 0; x < kBlocks; ++x)
#pragma unroll
      for (int e = 0; e < 4; ++e) z[x][e] = offset;
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
#pragma unroll
      for (int x = 0; x < kBlocks; ++x)
        mma(z[x], own[n], low_word(other[x][n]), high_word(other[x][n]));
#pragma unroll
      for (int x = 0; x < kBlocks; ++x)
        mma(z[x], own[n], high_word(other[x][n]), low_word(other[x][n]));
    }
  }

  // Left operands of 16 tokens, transposed: rows 0 to 7 are the columns' high halves, rows 8 to 15
  // their low halves.
  FOVEA_DEVICE static void own_pairs(uint32_t (&a)[4], const GateFactors& f, int b, int chunk,
                                     int tokens, int first) {
    const uint64_t *x, *y;
    pairs_at(x, y, f, b, chunk, tokens, first);
    const uint64_t low = load_read_only(x), high = load_read_only(y);
    a[0] = low_word(low);
    a[1] = high_word(low);
    a[2] = low_word(high);
    a[3] = high_word(high);
  }
  // acc[16 own tokens x 8 columns] += left[16 own x 16 others] factors[16 others from `first` x 8]
  FOVEA_DEVICE static void add_own(float (&acc)[4], const uint32_t (&left)[4], const GateFactors& f,
                                   int b, int chunk, int tokens, int first) {
    const uint64_t *x, *y;
    pairs_at(x, y, f, b, chunk, tokens, first);
    const uint64_t low = load_read_only(x), high = load_read_only(y);
    mma(acc, left, low_word(low), low_word(high));
    mma(acc, left, high_word(low), high_word(high));
  }

 private:
  FOVEA_DEVICE static int64_t row_at(int token, int chunk) {
    return int64_t(token * kChunks + chunk) * 4;
  }
  FOVEA_DEVICE static void pairs_at(const uint64_t*& x, const uint64_t*& y, const GateFactors& f,
                                    int b, int chunk, int tokens, int first) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    x = f.pairs + b * f.batch + int64_t((chunk * tokens + first) / 2 + t) * 8 + g;
    y = x + 4 * 8;
  }
};

// Applies the gate to raw products, before scale, bias and mask; `weight` is none of these.
// s: NT blocks of 8 columns. inverse(x, e): 1 / (scale log2 e) of the pair's query. local(x, e).
template <int kChunks, int NT, class Inverse, class Local>
FOVEA_DEVICE void gate_products(const Problem& p, const Place& at, float (&s)[NT][4],
                                const GateFactors& own_side, int own, const GateFactors& other_side,
                                int other, Reach reach, Inverse inverse, Local local) {
  constexpr int kBlocks = 4;
  using Tile = GateTile<kChunks, kBlocks>;
  uint32_t a[kChunks][4];
  Tile::own_rows(a, own_side, at.b, own);
#pragma unroll
  for (int x0 = 0; x0 < NT; x0 += kBlocks) {
    float z[kBlocks][4];
    Tile::products(z, a, other_side, at.b, other + x0 * 8, p.gate_offset);
    const bool adds = p.gate == GateKind::log_sigmoid;
#pragma unroll
    for (int x = 0; x < kBlocks; ++x)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& value = s[x0 + x][e];
        const float gated =
            adds ? value + log2_sigmoid(z[x][e]) * inverse(x0 + x, e) : value * sigmoid(z[x][e]);
        value = reach == Reach::mixed && local(x0 + x, e) ? value : gated;
      }
  }
}

// The gradient of z of one tile of the backward pass, 16 keys of a warp by queries, block by block.
template <class Score, class Visible, GateKind kKind>
struct GateGradient {
  static constexpr int kChunks = Score::kGateChunks;
  static constexpr int kBlocks = 2;  // registers are scarce
  using Tile = GateTile<kChunks, kBlocks>;
  const Problem& p;
  const Place& at;
  const int i0, key0;  // first query of the tile, first key of the warp
  Reach reach;
  float z[kBlocks][4];
  uint32_t dz[2][2];

  // Blocks [x, x + kBlocks) come next.
  FOVEA_DEVICE void prepare(int x) {
    uint32_t a[kChunks][4];
    Tile::own_rows(a, p.gate_key, at.b, key0);
    Tile::products(z, a, p.gate_query, at.b, i0 + x * 8, p.gate_offset);
  }
  FOVEA_DEVICE bool local(int x, int e) const {
    if (reach != Reach::mixed) return false;
    const int lane = threadIdx.x % 32, i = i0 + x * 8 + 2 * (lane % 4) + e % 2;
    return local_keys<Visible>(p, at, i).has(key0 + lane / 4 + e / 2 * 8);
  }

  // Element e of block x. weight: what exponentials gave, without the gate that multiplies weights;
  // becomes the weight. d: dP - delta. `unbiased`: the base-2 logit without its bias. Gives d z,
  // and in `gain` d logit / d (scale * raw).
  FOVEA_DEVICE float element(int x, int e, float& weight, float d, float unbiased,
                             float& gain) const {
    const float of_pair = z[x % kBlocks][e];
    const bool near = local(x, e);
    float result;
    if constexpr (kKind == GateKind::weight) {
      result = weight * d;
      weight *= near ? 1.0f : min_of(of_pair, p.gate_most);
    } else if constexpr (kKind == GateKind::log_sigmoid) {
      result = weight * d * sigmoid(-of_pair);
    } else {
      const float sigma = sigmoid(of_pair);
      gain = near ? 1.0f : sigma;
      result = weight > 0.0f ? weight * d * unbiased * kLn2 * (1.0f - sigma) : 0.0f;
    }
    return near ? 0.0f : result;
  }

  // A base-2 logit without the gate that was added to it.
  FOVEA_DEVICE float ungated(int x, int e, float logit2) const {
    return local(x, e) ? logit2 : logit2 - log2_sigmoid(z[x % kBlocks][e]);
  }

  // Block x is done: its d z. of_keys: 16 keys x 8 columns a chunk.
  FOVEA_DEVICE void add(int x, const float (&gradient)[4], float (&of_keys)[kChunks][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      dz[x % 2][half] = pack(gradient[2 * half], gradient[2 * half + 1]);
    if (x % 2 == 0 || p.d_gate_key == nullptr) return;
    const int lane = threadIdx.x % 32, first = i0 + (x - 1) * 8;
    const uint32_t left[4] = {dz[0][0], dz[0][1], dz[1][0], dz[1][1]};
    const int query_tokens = int(p.gate_query.batch / (4 * kChunks)),
              key_tokens = int(p.gate_key.batch / (4 * kChunks));
    const uint32_t right[2][2] = {{transpose(dz[0][0]), transpose(dz[0][1])},
                                  {transpose(dz[1][0]), transpose(dz[1][1])}};
    float* sums =
        p.gate_query_sum + (int64_t(at.b) * p.heads + at.h) * kChunks * p.padded * 8 + lane * 4;
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
      Tile::add_own(of_keys[n], left, p.gate_query, at.b, n, query_tokens, first);
      uint32_t a[4];
      Tile::own_pairs(a, p.gate_key, at.b, n, key_tokens, key0);
      float even[4] = {}, odd[4] = {};
      mma(even, a, right[0][0], right[0][1]);
      mma(odd, a, right[1][0], right[1][1]);
      add_global_4(sums + (n * p.padded + first) * 8, even[0] + even[2], even[1] + even[3],
                   odd[0] + odd[2], odd[1] + odd[3]);
    }
  }
};

struct NoGateGradient {
  const Problem& p;
  const Place& at;
  int i0, key0;
  Reach reach;
};
template <class Score, class Visible, GateKind kKind>
using GateOf = std::conditional_t<kKind == GateKind::none, NoGateGradient,
                                  GateGradient<Score, Visible, kKind>>;

// d_gate_key of the 16 keys of a warp from `key0`.
template <int kChunks>
FOVEA_DEVICE void store_key_gates(const Problem& p, const Place& at, int key0,
                                  const float (&of_keys)[kChunks][4]) {
  if (p.d_gate_key == nullptr) return;
  const int lane = threadIdx.x % 32;
  const int64_t head = (int64_t(at.b) * p.kv_heads + at.g) * p.keys;
#pragma unroll
  for (int n = 0; n < kChunks; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int j = key0 + lane / 4 + e / 2 * 8, c = n * 8 + 2 * (lane % 4) + e % 2;
      if (j < p.keys && c < p.gate_columns)
        p.d_gate_key[(head + j) * p.gate_columns + c] = of_keys[n][e];
    }
}

// Calls f with the gate's kind as a constant; `none` where the gate leaves the tile alone.
template <class F>
FOVEA_DEVICE void with_gate(const Problem& p, Reach reach, F f) {
  if (reach == Reach::near)
    f(GateIs<GateKind::none>{});
  else if (p.gate == GateKind::weight)
    f(GateIs<GateKind::weight>{});
  else if (p.gate == GateKind::log_sigmoid)
    f(GateIs<GateKind::log_sigmoid>{});
  else
    f(GateIs<GateKind::sigmoid_logit>{});
}

}  // namespace fovea::kernels::cuda
