// Mixing the heads of one row of a step, in registers (spec 2, 3.2 steps 4 and 7).
//
//   y[o, n] = sum_c W[o, c] x[c, n]   for n < kStepKeys, inside each group of `width` heads
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/mixing/mixing_seen.h"

namespace fovea::kernels {
namespace {

constexpr int kMixVectors = kRegisters == 32 ? 4 : 2;
static_assert(kStepVectors % kMixVectors == 0);

/// Rows of kStepKeys numbers of all heads, `head` floats apart.
template <class Number>
struct HeadStep {
  Number* row = nullptr;
  int64_t head = 0;

  Number* of(int64_t h) const { return row + h * head; }
  HeadStep group(int64_t first) const { return {of(first), head}; }
};

// Heads [out, out + N) of a group.
template <int N>
FOVEA_INLINE void mix_some(HeadStep<const float> x, const float* weights, int64_t width,
                           int64_t out, HeadStep<float> y) {
  for (int64_t at = 0; at < kStepKeys; at += kMixVectors * kLanes) {
    Float sums[N][kMixVectors] = {};
    for (int64_t c = 0; c < width; ++c) {
      Float input[kMixVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kMixVectors; ++v) input[v] = load(x.of(c) + at + v * kLanes);
#pragma GCC unroll 4
      for (int o = 0; o < N; ++o) {
        const Float w = broadcast(weights[(out + o) * width + c]);
#pragma GCC unroll 4
        for (int v = 0; v < kMixVectors; ++v) sums[o][v] = w * input[v] + sums[o][v];
      }
    }
#pragma GCC unroll 4
    for (int o = 0; o < N; ++o) {
#pragma GCC unroll 4
      for (int v = 0; v < kMixVectors; ++v) store(y.of(out + o) + at + v * kLanes, sums[o][v]);
    }
  }
}

/// `heads` heads in groups of `width`; weights [heads / width][width][width] stored (out, in).
FOVEA_INLINE void mix_heads(HeadStep<const float> x, const float* weights, int64_t heads,
                            int64_t width, HeadStep<float> y) {
  for (int64_t first = 0; first < heads; first += width, weights += width * width) {
    const HeadStep<const float> from = x.group(first);
    const HeadStep<float> to = y.group(first);
    int64_t out = 0;
    for (; out + 4 <= width; out += 4) mix_some<4>(from, weights, width, out, to);
    for (; out + 2 <= width; out += 2) mix_some<2>(from, weights, width, out, to);
    for (; out < width; ++out) mix_some<1>(from, weights, width, out, to);
  }
}

}  // namespace
}  // namespace fovea::kernels
