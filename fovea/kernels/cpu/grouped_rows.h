// Rows of gradients as sums of what several passes left (grouped attention).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/attention_lanes.h"

namespace fovea::kernels {
namespace {

template <class T>
void join_rows(const JoinRows<T>& p) {
  const FlushDenormals flush;
  float total[256];  // the widest head
  for (int64_t r = 0; r < p.rows; ++r) {
    const int32_t begin = p.part_begin[r], end = p.part_begin[r + 1];
    if (begin == end) {
      for (int64_t c = 0; c < p.width; ++c) total[c] = 0.0f;
    } else {
      const float* first = p.parts[begin];
      for (int64_t c = 0; c < p.width; ++c) total[c] = first[c];
    }
    for (int32_t n = begin + 1; n < end; ++n) {
      const float* part = p.parts[n];
      for (int64_t c = 0; c < p.width; ++c) total[c] += part[c];
    }
    T* to = p.out + r * p.out_row;
    for (int64_t c = 0; c < p.width; ++c) from_float(total[c], to[c]);
    if (p.tau == nullptr) continue;
    const T* q = p.q + r * p.q_row;
    float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
    for (int64_t c = 0; c < p.width; ++c) dot += to_float(q[c]) * total[c];
    p.dtau[r] = -dot / p.tau[r];
  }
}

}  // namespace
}  // namespace fovea::kernels
