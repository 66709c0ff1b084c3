// A key-query convolution of one window, in registers (spec 3.2 step 3c).
//
//   window: kHaloRows + kStripRows rows of kHistory + kStepKeys keys; a result lags by kKernelLag:
//
//             history        keys of this step
//           +--------+--------------------------------+
//      halo |        |                                |   rows before the strip
//           +--------+--------------------------------+
//     strip |   [ older | key | newer ]               |   result n is key  n - kKernelLag  of the
//           |   [ ck keys x cq rows   ]               |   step: it reads columns n + 8 - older ...
//           +--------+--------------------------------+
//
// kConvolutionRows results of all keys of a step are made together: a row is read once for up to cq
// of them. Taps are added row by row from the oldest, key by key: the same order, hence the same
// bits, wherever a row lies in its strip.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/mixing_seen.h"

namespace fovea::kernels {
namespace {

// kConvolutionRows x kConvolutionVectors sums, as many inputs and a tap must fit the registers.
constexpr int kConvolutionRows = 6;
#if defined(__AVX512F__)
constexpr int kConvolutionVectors = 4;
#else
constexpr int kConvolutionVectors = 2;
#endif
static_assert(kStripRows % kConvolutionRows == 0 && kStepVectors % kConvolutionVectors == 0);

/// A kernel over `rows` rows that end at the current one.
struct Taps {
  const float* taps = nullptr;  ///< [rows][keys]
  int64_t rows = 0, keys = 0;

  int64_t older() const { return (keys - 1) / 2; }
  /// Of the last `count` rows only.
  Taps last(int64_t count) const { return {taps + (rows - count) * keys, count, keys}; }
};

// Row `row` of the window meets the results that it lies 0 to cq - 1 rows before.
template <int cq, int row>
FOVEA_INLINE void add_row(Float (&sums)[kConvolutionRows][kConvolutionVectors], const float* in,
                          const Taps& k) {
  constexpr int first = row - (cq - 1) > 0 ? row - (cq - 1) : 0;
  constexpr int last = row < kConvolutionRows - 1 ? row : kConvolutionRows - 1;
  const float* const x = in + row * kWindowPitch;
  for (int64_t b = 0; b < k.keys; ++b) {
    Float input[kConvolutionVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kConvolutionVectors; ++v) input[v] = load(x + b + v * kLanes);
#pragma GCC unroll 8
    for (int result = first; result <= last; ++result) {
      const Float tap = broadcast(k.taps[(row - result) * k.keys + b]);
#pragma GCC unroll 4
      for (int v = 0; v < kConvolutionVectors; ++v)
        sums[result][v] = tap * input[v] + sums[result][v];
    }
  }
  if constexpr (row + 1 < kConvolutionRows + cq - 1) add_row<cq, row + 1>(sums, in, k);
}

template <int cq>
void convolve_tile(const float* in, const Taps& k, float* out) {
  for (int64_t at = 0; at < kStepKeys; at += kConvolutionVectors * kLanes) {
    Float sums[kConvolutionRows][kConvolutionVectors] = {};
    add_row<cq, 0>(sums, in + at, k);
#pragma GCC unroll 8
    for (int r = 0; r < kConvolutionRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kConvolutionVectors; ++v)
        store(out + r * kStepKeys + at + v * kLanes, sums[r][v]);
    }
  }
}

/// kConvolutionRows rows of results, kStepKeys apart. `row` is the window's row of the first result
/// at the first key of the step.
FOVEA_INLINE void convolve_rows(const float* row, const Taps& k, float* out) {
  const float* const in = row - (k.rows - 1) * kWindowPitch - kKernelLag - k.older();
  switch (k.rows) {
    case 1:
      return convolve_tile<1>(in, k, out);
    case 2:
      return convolve_tile<2>(in, k, out);
    case 3:
      return convolve_tile<3>(in, k, out);
    case 4:
      return convolve_tile<4>(in, k, out);
    case 5:
      return convolve_tile<5>(in, k, out);
    case 6:
      return convolve_tile<6>(in, k, out);
    case 7:
      return convolve_tile<7>(in, k, out);
    default:
      return convolve_tile<8>(in, k, out);
  }
}

/// One row of results, with any number of rows: at the borders of documents.
FOVEA_INLINE void convolve_row(const float* row, const Taps& k, float* out) {
  const float* const in = row - (k.rows - 1) * kWindowPitch - kKernelLag - k.older();
  for (int v = 0; v < kStepVectors; ++v) {
    Float sums{};
    for (int64_t a = 0; a < k.rows; ++a) {
      for (int64_t b = 0; b < k.keys; ++b)
        sums =
            broadcast(k.taps[a * k.keys + b]) * load(in + a * kWindowPitch + b + v * kLanes) + sums;
    }
    store(out + v * kLanes, sums);
  }
}

}  // namespace
}  // namespace fovea::kernels
