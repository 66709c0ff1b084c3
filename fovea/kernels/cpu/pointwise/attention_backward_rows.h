// Row-wise steps of the backward pass, before and after its blocks of keys.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/pointwise/row_state.h"
#include "fovea/kernels/cpu/simd/lanes.h"

namespace fovea::kernels {
namespace {

template <class T>
void delta_rows(const DeltaRows<T>& p) {
  const FlushDenormals flush;
  for (int64_t r = 0; r < p.rows; ++r) {
    const T *out = p.out + r * p.out_row, *dout = p.dout + r * p.dout_row;
    float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
    for (int64_t c = 0; c < p.width; ++c) dot += to_float(out[c]) * to_float(dout[c]);
    if (p.rest != nullptr) {
      const T* rest = p.rest + r * p.rest_row;
      float lost = 0.0f;
#pragma omp simd reduction(+ : lost)
      for (int64_t c = 0; c < p.width; ++c) lost += to_float(rest[c]) * to_float(dout[c]);
      dot += lost;
    }
    p.delta[r] = p.dlse != nullptr ? dot - p.dlse[r] : dot;
    p.lse2[r] = p.lse[r] == -kInfinity ? kInfinity : p.lse[r] * kLog2E;
  }
}

template <class T>
void query_gradient_rows(const QueryGradientRows<T>& p) {
  const FlushDenormals flush;
  float dq[256];  // the widest head
  for (int64_t r = 0; r < p.rows; ++r) {
    const float* from = p.parts + r * p.columns;
    for (int64_t c = 0; c < p.width; ++c) dq[c] = from[c];
    for (int64_t part = 1; part < p.part_count; ++part) {
      from += p.part_size;
      for (int64_t c = 0; c < p.width; ++c) dq[c] += from[c];
    }
    float zero = 0.0f;
#pragma omp simd reduction(+ : zero)
    for (int64_t c = 0; c < p.width; ++c) zero += dq[c] * 0.0f;
    if (zero != 0.0f) note_not_finite(p.not_finite);
    T* to = p.dq + r * p.dq_row;
    for (int64_t c = 0; c < p.width; ++c) from_float(dq[c], to[c]);
    for (int64_t n = 0; p.turns != nullptr && n < kTurnSums; ++n) {
      float sum = 0.0f;
      for (int64_t part = 0; part < p.part_count; ++part)
        sum += p.parts[part * p.part_size + r * p.columns + p.turn + n];
      p.turns[r * kTurnSums + n] = sum;
    }
  }
}

}  // namespace
}  // namespace fovea::kernels
