// Online softmax on accumulator fragments: MT blocks of 16 rows, NT blocks of 8 columns.
//
// mma.sync and wgmma leave accumulators in the same layout: with g = lane/4, t = lane%4, thread
// holds rows g and g+8 of a block and columns 8x+2t, 8x+2t+1. Row r of a thread is block r/2,
// half r%2; four lanes (a quad) share a row.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>

#include "fovea/kernels/cuda/attention/band.cuh"
#include "fovea/kernels/cuda/attention/gate.cuh"
#include "fovea/kernels/cuda/attention/score.cuh"

namespace fovea::kernels::cuda {

constexpr float kStaleLimit = 8.0f;  // base-2 logits

template <int MT, int NT, class Score, class Visible>
struct OnlineSoftmax {
  static constexpr int kRows = 2 * MT;
  static constexpr bool kCapInExponent = Score::kCap && !Score::kBias;
  float maximum[kRows], sum[kRows], scale[kRows], correction[kRows];
  typename Score::Head head;
  int first_row;              // tile row of row 0
  Reach reach = Reach::near;  // of the gate, in the tile of logits()
  int gate_key = 0;           // first key of that tile

  FOVEA_DEVICE OnlineSoftmax(const Problem& p, const Place& at, int first) : first_row(first) {
    head = Score::head(p, at.h);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = Score::kPerRow ? Visible::query_row(p, at, row_of(r)) : 0;
      scale[r] = Score::scale(p, at.b, at.h, row < 0 ? p.queries : row);
      maximum[r] = -infinity();
      sum[r] = 0.0f;
    }
  }
  FOVEA_DEVICE int row_of(int r) const { return first_row + (r / 2) * 16 + (r % 2) * 8; }
  // What multiplies an entry inside the exponent.
  FOVEA_DEVICE float factor(int r) const { return Score::kTransforms ? 1.0f : scale[r] * kLog2e; }

  // Are all |scale * raw| of this warp below the cap?
  FOVEA_DEVICE bool small(const float (&s)[MT][NT][4]) const {
    float high = 0.0f;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float top = 0.0f;
#pragma unroll
      for (int x = 0; x < NT; ++x)
        top = max_of(top, max_of(absolute(s[r / 2][x][(r % 2) * 2]),
                                 absolute(s[r / 2][x][(r % 2) * 2 + 1])));
      high = max_of(high, top * (scale[r] * head.inverse_cap));
    }
    return !any_lane(high > 1.0f);
  }
  template <bool kSmall>
  FOVEA_DEVICE void transform(const Problem& p, const Place& at, float (&s)[MT][NT][4],
                              int column) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int x = 0; x < NT; ++x)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& value = s[r / 2][x][(r % 2) * 2 + e];
          const int distance =
              Score::kBias ? Visible::distance(p, at, row_of(r), column + x * 8 + e) : 0;
          value = Score::template logit<kSmall>(head, value, scale[r], distance);
        }
  }

  // Raw products of key tile j0 -> logits (without a cap and bias, or below a cap: still raw),
  // hidden pairs -> -inf. keys_of(j, key) gives the keys of columns j and j + 1. Returns true when
  // the weights must apply the cap.
  template <class KeysOf>
  FOVEA_DEVICE bool logits(const Problem& p, const Place& at, float (&s)[MT][NT][4], int j0,
                           bool full, KeysOf keys_of) {
    const int column = j0 + 2 * (threadIdx.x % 4);
    bool capped_later = false;
    if constexpr (Score::kGated) gate(p, at, s, j0);
    if constexpr (Score::kCap) {
      const bool is_small = small(s);
      if (kCapInExponent && is_small)
        capped_later = true;
      else if (is_small)
        transform<true>(p, at, s, column);
      else
        transform<false>(p, at, s, column);
    } else if constexpr (Score::kTransforms) {
      transform<false>(p, at, s, column);
    }
    if (full) return capped_later;
    typename Visible::Row row[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) row[r] = Visible::row(p, at, row_of(r));
#pragma unroll
    for (int x = 0; x < NT; ++x) {
      typename Visible::Key key[2];
      keys_of(column + x * 8, key);
#pragma unroll
      for (int e = 0; e < 2; ++e)
#pragma unroll
        for (int r = 0; r < kRows; ++r)
          if (!Visible::sees(p, row[r], key[e], column + x * 8 + e))
            s[r / 2][x][(r % 2) * 2 + e] = -infinity();
    }
    return capped_later;
  }

  // The gate on raw products, or left to the weights.
  FOVEA_DEVICE void gate(const Problem& p, const Place& at, float (&s)[MT][NT][4], int j0) {
    const int i0 = first_row - threadIdx.x % 32 / 4, column = j0 + 2 * (threadIdx.x % 4);
    reach = gate_reach<Visible>(p, at, i0, 16 * MT, j0, 8 * NT);
    gate_key = j0;
    if (reach == Reach::near || p.gate == GateKind::weight) return;
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      LocalKeys keys[2];
      float inverse[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        keys[half] = local_keys<Visible>(p, at, row_of(2 * m + half));
        inverse[half] = 1.0f / (scale[2 * m + half] * kLog2e);
      }
      gate_products<Score::kGateChunks>(
          p, at, s[m], p.gate_query, i0 + 16 * m, p.gate_key, j0, reach,
          [&](int, int e) { return inverse[e / 2]; },
          [&](int x, int e) { return keys[e / 2].has(column + x * 8 + e % 2); });
    }
  }
  // Weights times z.
  FOVEA_DEVICE void gate_weights(const Problem& p, const Place& at, float (&s)[MT][NT][4]) const {
    constexpr int kBlocks = 4;
    using Tile = GateTile<Score::kGateChunks, kBlocks>;
    const int i0 = first_row - threadIdx.x % 32 / 4, column = gate_key + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      uint32_t own[Score::kGateChunks][4];
      Tile::own_rows(own, p.gate_query, at.b, i0 + 16 * m);
      LocalKeys keys[2];
#pragma unroll
      for (int half = 0; half < 2; ++half)
        keys[half] = local_keys<Visible>(p, at, row_of(2 * m + half));
#pragma unroll
      for (int x0 = 0; x0 < NT; x0 += kBlocks) {
        float z[kBlocks][4];
        Tile::products(z, own, p.gate_key, at.b, gate_key + x0 * 8, p.gate_offset);
#pragma unroll
        for (int x = 0; x < kBlocks; ++x)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const bool near =
                reach == Reach::mixed && keys[e / 2].has(column + (x0 + x) * 8 + e % 2);
            s[m][x0 + x][e] *= near ? 1.0f : min_of(z[x][e], p.gate_most);
          }
      }
    }
  }

  // The cap as a factor of the raw product, in base 2: logit = raw * cap_factor(raw^2).
  struct CapFactor {
    float c[5];
    FOVEA_DEVICE CapFactor(const typename Score::Head& head, float scale) {
      const float k = scale * head.inverse_cap, u = k * k;
      float power = scale * kLog2e;
#pragma unroll
      for (int n = 0; n < 5; ++n, power *= u) c[n] = power * tanh_coefficient(n);
    }
    FOVEA_DEVICE float operator()(float raw) const {
      const float u = raw * raw;
      return (((c[4] * u + c[3]) * u + c[2]) * u + c[1]) * u + c[0];
    }
  };

  // Logits -> weights relative to the running maximum. The maximum is left stale until it would be
  // exceeded by 2^kStaleLimit. Returns true when some row of the warp needs `correction`.
  FOVEA_DEVICE bool weights(const Problem& p, const Place& at, float (&s)[MT][NT][4],
                            bool capped_later) {
    if constexpr (kCapInExponent) {
      if (capped_later) return weights_of<true>(s);
    }
    if constexpr (Score::kGated) {
      if (reach != Reach::near && p.gate == GateKind::weight)
        return weights_of<false>(s, [&] { gate_weights(p, at, s); });
    }
    return weights_of<false>(s);
  }
  // `gate` acts on the weights before they are summed; null: nothing does.
  template <bool kCapLater, class Gate = std::nullptr_t>
  FOVEA_DEVICE bool weights_of(float (&s)[MT][NT][4], Gate gate = {}) {
    constexpr bool kGatesWeights = !std::is_same_v<Gate, std::nullptr_t>;
    bool moved = false;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float top = -infinity();
#pragma unroll
      for (int x = 0; x < NT; ++x)
        top = max_of(top, max_of(s[r / 2][x][(r % 2) * 2], s[r / 2][x][(r % 2) * 2 + 1]));
      top = max_of(top, shuffle_xor(top, 1));
      top = max_of(top, shuffle_xor(top, 2));
      if constexpr (kCapLater) top *= CapFactor(head, scale[r])(top);  // the cap is monotone
      correction[r] = 1.0f;
      // -inf minus -inf is NaN and compares false.
      if ((top - maximum[r]) * factor(r) > kStaleLimit) {
        correction[r] = exp2_fast((maximum[r] - top) * factor(r));
        maximum[r] = top;
        moved = true;
      }
    }
    moved = any_lane(moved);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float f = factor(r), shift = maximum[r] == -infinity() ? 0.0f : maximum[r] * f;
      if (moved) sum[r] *= correction[r];
      const CapFactor cap(head, kCapLater ? scale[r] : 0.0f);
#pragma unroll
      for (int x = 0; x < NT; ++x)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& value = s[r / 2][x][(r % 2) * 2 + e];
          value = exp2_fast(value * (kCapLater ? cap(value) : f) - shift);
          if constexpr (!kGatesWeights) sum[r] += value;
        }
    }
    if constexpr (kGatesWeights) {
      gate();
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int x = 0; x < NT; ++x)
          sum[r] += s[r / 2][x][(r % 2) * 2] + s[r / 2][x][(r % 2) * 2 + 1];
    }
    return moved;
  }

  template <int DT>
  FOVEA_DEVICE void correct(float (&o)[MT][DT][4]) const {
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int x = 0; x < DT; ++x)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[m][x][e] *= correction[2 * m + e / 2];
  }

  // Sum over the quad; base-2 maximum of row r (-inf for an empty row).
  FOVEA_DEVICE float total(int r) const {
    const float s = sum[r] + shuffle_xor(sum[r], 1);
    return s + shuffle_xor(s, 2);
  }
  FOVEA_DEVICE float maximum2(int r) const {
    return maximum[r] == -infinity() ? -infinity() : maximum[r] * factor(r);
  }
};

}  // namespace fovea::kernels::cuda
