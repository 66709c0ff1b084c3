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
// Loads of this many outputs' weights are in flight together: one stream a thread does not fill the
// memory's pipeline.
constexpr int64_t kTogether = 2;

template <class W, int64_t rows, int64_t outputs>
FOVEA_INLINE void dot(const MatVec<W>& p, int64_t first) {
  float sums[outputs][rows][kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= p.inputs; i += kLanes) {
    for (int64_t o = 0; o < outputs; ++o) {
      const W* __restrict w = p.w + (first + o) * p.inputs + i;
      for (int64_t r = 0; r < rows; ++r) {
        const float* __restrict x = p.x + r * p.inputs + i;
#pragma omp simd
        for (int64_t l = 0; l < kLanes; ++l) sums[o][r][l] += x[l] * to_float(w[l]);
      }
    }
  }
  for (int64_t o = 0; o < outputs; ++o) {
    const W* w = p.w + (first + o) * p.inputs;
    for (int64_t r = 0; r < rows; ++r) {
      const float* x = p.x + r * p.inputs;
      float* s = sums[o][r];
      for (int64_t j = i; j < p.inputs; ++j) s[j - i] += x[j] * to_float(w[j]);
      for (int64_t half = kLanes / 2; half > 0; half /= 2)
        for (int64_t l = 0; l < half; ++l) s[l] += s[l + half];
      p.y[r * p.y_stride + first + o] = s[0];
    }
  }
}

template <class W, int64_t rows>
void range_of_rows(const MatVec<W>& p, int64_t begin, int64_t end) {
  constexpr int64_t together = rows == 1 ? kTogether : 1;  // the sums must stay in registers
  int64_t o = begin;
  for (; o + together <= end; o += together) dot<W, rows, together>(p, o);
  for (; o < end; ++o) dot<W, rows, 1>(p, o);
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
