// A key-query convolution of rows that lie in memory from end to end (spec 3.2 step 3c). In
// decoding a step has few rows, and its neighbours' numbers are at hand.
//
//   out[i, n] = sum_ab K[a, b] x[i + a, n - older + b]     for kStepKeys numbers n
//
// Taps are added row by row from the oldest, key by key, however many results are made together:
// the same order, hence the same bits.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/mixing/mixing_convolution.h"

namespace fovea::kernels {
namespace {

/// Rows `pitch` floats apart: row 0 is the oldest that result 0 reads, at the first key of a step.
struct ConvolvedRows {
  const float* x = nullptr;
  int64_t pitch = 0;

  ConvolvedRows from(int64_t row) const { return {x + row * pitch, pitch}; }
};

// Row `row` of the input meets the results that it lies 0 to cq - 1 rows before.
template <int cq, int N, int row>
FOVEA_INLINE void add_input(Float (&sums)[N][kConvolutionVectors], const float* in, int64_t pitch,
                            const Taps& k) {
  constexpr int first = row - (cq - 1) > 0 ? row - (cq - 1) : 0;
  constexpr int last = row < N - 1 ? row : N - 1;
  const float* const x = in + row * pitch;
  for (int64_t b = 0; b < k.words; ++b) {
    Float input[kConvolutionVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kConvolutionVectors; ++v) input[v] = load(x + b + v * kLanes);
#pragma GCC unroll 8
    for (int result = first; result <= last; ++result) {
      const Float tap = broadcast(k.taps[(row - result) * k.words + b]);
#pragma GCC unroll 4
      for (int v = 0; v < kConvolutionVectors; ++v)
        sums[result][v] = tap * input[v] + sums[result][v];
    }
  }
  if constexpr (row + 1 < N + cq - 1) add_input<cq, N, row + 1>(sums, in, pitch, k);
}

template <int cq, int N>
void convolve_results(const ConvolvedRows& rows, const Taps& k, float* out) {
  for (int64_t at = 0; at < kStepKeys; at += kConvolutionVectors * kLanes) {
    Float sums[N][kConvolutionVectors] = {};
    add_input<cq, N, 0>(sums, rows.x + k.first + at, rows.pitch, k);
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kConvolutionVectors; ++v)
        store(out + i * kStepKeys + at + v * kLanes, sums[i][v]);
    }
  }
}

template <int cq>
void convolve_all(ConvolvedRows rows, const Taps& k, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + kConvolutionRows <= count; i += kConvolutionRows)
    convolve_results<cq, kConvolutionRows>(rows.from(i), k, out + i * kStepKeys);
  for (; i + 2 <= count; i += 2) convolve_results<cq, 2>(rows.from(i), k, out + i * kStepKeys);
  if (i < count) convolve_results<cq, 1>(rows.from(i), k, out + i * kStepKeys);
}

/// `count` rows of results, kStepKeys apart.
inline void convolve_rows_of_step(const ConvolvedRows& rows, const Taps& k, int64_t count,
                                  float* out) {
  switch (k.rows) {
    case 1:
      return convolve_all<1>(rows, k, count, out);
    case 2:
      return convolve_all<2>(rows, k, count, out);
    case 3:
      return convolve_all<3>(rows, k, count, out);
    case 4:
      return convolve_all<4>(rows, k, count, out);
    case 5:
      return convolve_all<5>(rows, k, count, out);
    case 6:
      return convolve_all<6>(rows, k, count, out);
    case 7:
      return convolve_all<7>(rows, k, count, out);
    default:
      return convolve_all<8>(rows, k, count, out);
  }
}

}  // namespace
}  // namespace fovea::kernels
