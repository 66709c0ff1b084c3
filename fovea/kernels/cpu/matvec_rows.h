// The loops of matvec.h, written once and compiled once per instruction set (elementwise_rows.h
// says why everything here has internal linkage).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/matvec.h"

namespace fovea::kernels {
namespace {

// Partial sums of one output: four vectors of 16, so that the additions of one need not wait for
// each other. The number is the same for every instruction set.
constexpr int64_t kLanes = 64;
// A thread reads this many stretches of the weights side by side, each from one end to the other:
// the prefetchers follow long stretches and lose those that jump from row to row (rows o and o + 1
// together reach 60 % of the speed; one stretch alone 75 % where pages are small).
constexpr int64_t kStretches = 2;

/// Outputs first, first + stride, ...
template <class W, int64_t rows, int64_t outputs>
FOVEA_INLINE void dot(const MatVec<W>& p, int64_t first, int64_t stride) {
  float sums[outputs][rows][kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= p.inputs; i += kLanes) {
    for (int64_t o = 0; o < outputs; ++o) {
      const W* __restrict w = p.w + (first + o * stride) * p.inputs + i;
      for (int64_t r = 0; r < rows; ++r) {
        const float* __restrict x = p.x + r * p.inputs + i;
#pragma omp simd
        for (int64_t l = 0; l < kLanes; ++l) sums[o][r][l] += x[l] * to_float(w[l]);
      }
    }
  }
  for (int64_t o = 0; o < outputs; ++o) {
    const W* w = p.w + (first + o * stride) * p.inputs;
    for (int64_t r = 0; r < rows; ++r) {
      const float* x = p.x + r * p.inputs;
      float* s = sums[o][r];
      for (int64_t j = i; j < p.inputs; ++j) s[j - i] += x[j] * to_float(w[j]);
      for (int64_t half = kLanes / 2; half > 0; half /= 2)
        for (int64_t l = 0; l < half; ++l) s[l] += s[l + half];
      p.y[r * p.y_stride + first + o * stride] = s[0];
    }
  }
}

template <class W, int64_t rows>
void range_of_rows(const MatVec<W>& p, int64_t begin, int64_t end) {
  constexpr int64_t stretches = rows == 1 ? kStretches : 1;  // the sums must stay in registers
  const int64_t length = (end - begin) / stretches;
  for (int64_t o = begin; o < begin + length; ++o) dot<W, rows, stretches>(p, o, length);
  for (int64_t o = begin + length * stretches; o < end; ++o) dot<W, rows, 1>(p, o, 1);
}

template <class W>
void mat_vec_range(const MatVec<W>& p, int64_t begin, int64_t end) {
  switch (p.rows) {
    case 1:
      return range_of_rows<W, 1>(p, begin, end);
    case 2:
      return range_of_rows<W, 2>(p, begin, end);
    case 3:
      return range_of_rows<W, 3>(p, begin, end);
    default:
      return range_of_rows<W, 4>(p, begin, end);
  }
}

}  // namespace
}  // namespace fovea::kernels
