// Rows of gradients as sums over several passes (grouped attention).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/pointwise/row_state.h"
#include "fovea/kernels/cpu/simd/lanes.h"

namespace fovea::kernels {
namespace {

inline int64_t scan_members(const MemberScan& p) {
  int64_t count = 0, n = p.begin;
  for (; n + 8 <= p.end; n += 8)
    count += list_common(p.members + n, p.query_members, static_cast<int32_t>(n), p.out + count);
  for (; n < p.end; ++n) {  // without a branch
    p.out[count] = static_cast<int32_t>(n);
    count += (p.members[n] & p.query_members) != 0 ? 1 : 0;
  }
  return count;
}

template <class T>
void join_rows(const JoinRows<T>& p) {
  const FlushDenormals flush;
  float row[kWidestHead];
  for (int64_t r = 0; r < p.rows; ++r) {
    float* const total = p.sums != nullptr ? p.sums + r * p.columns : row;
    const int32_t begin = p.part_begin[r], end = p.part_begin[r + 1];
    for (int64_t c = 0; c < p.width; c += kLanes) {  // parts are whole vectors
      Float x{};
      for (int32_t n = begin; n < end; ++n) x = x + load(p.parts[n] + c);
      store(total + c, x);
    }
    if (p.sums != nullptr) continue;
    float zero = 0.0f;
#pragma omp simd reduction(+ : zero)
    for (int64_t c = 0; c < p.width; ++c) zero += total[c] * 0.0f;
    if (zero != 0.0f) note_not_finite(p.not_finite);
    T* to = p.out + r * p.out_row;
    for (int64_t c = 0; c < p.width; ++c) from_float(total[c], to[c]);
    for (int64_t i = 0; p.turns != nullptr && i < kTurnSums; ++i) {
      float sum = 0.0f;
      for (int32_t n = begin; n < end; ++n) sum += p.parts[n][p.turn + i];
      p.turns[r * kTurnSums + i] = sum;
    }
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
