// The loops of few_keys.h, written once and compiled once per instruction set, in
// selector_<set>.cpp, under the rules of selector_rows.h.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/common/vector_math.h"
#include "fovea/kernels/cpu/attention_lanes.h"
#include "fovea/kernels/cpu/few_keys.h"

namespace fovea::kernels {
namespace {

constexpr int64_t kFewVectors = kFewGroup / kLanes;

template <class T>
FOVEA_INLINE void widen(const T* from, int64_t width, float* to) {
  const T* __restrict x = from;
  float* __restrict y = to;
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) y[c] = to_float(x[c]);
}

/// products[i][n] = rows[i] . key n of a group; rows lie side by side in floats.
FOVEA_INLINE void few_products(const float* rows, int64_t width, const float* columns,
                               float (&products)[kFewRows][kFewGroup]) {
  Float sums[kFewRows][kFewVectors] = {};
  for (int64_t c = 0; c < width; ++c) {
#pragma GCC unroll 8
    for (int64_t i = 0; i < kFewRows; ++i) {
      const Float left = broadcast(rows[i * width + c]);
#pragma GCC unroll 4
      for (int64_t v = 0; v < kFewVectors; ++v)
        sums[i][v] += left * load(columns + c * kFewGroup + v * kLanes);
    }
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < kFewRows; ++i) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kFewVectors; ++v) store(products[i] + v * kLanes, sums[i][v]);
  }
}

FOVEA_INLINE uint32_t of_group(uint64_t seen, int64_t group) {
  return static_cast<uint32_t>(seen >> (group * kFewGroup)) & ((1u << kFewGroup) - 1u);
}

/// The logits of one row and a group.
struct FewLogits {
  float logits[kFewGroup];  ///< -inf of keys that are not seen
  float scaled[kFewGroup];  ///< before the soft-cap
  float slopes[kFewGroup];  ///< of the soft-cap: d logit / d scaled
  float top = -kInfinity;

  FOVEA_INLINE FewLogits(const float* products, float scale, float cap, uint32_t seen) {
    const float inverse = cap > 0.0f ? 2.0f / cap : 0.0f;
#pragma omp simd
    for (int32_t n = 0; n < kFewGroup; ++n) {
      scaled[n] = logits[n] = scale * products[n];
      slopes[n] = 1.0f;
    }
    if (cap > 0.0f) {
#pragma omp simd
      for (int32_t n = 0; n < kFewGroup; ++n) {
        const float tanh = 1.0f - 2.0f / (fast_exp(inverse * scaled[n]) + 1.0f);
        logits[n] = cap * tanh;
        slopes[n] = 1.0f - tanh * tanh;
      }
    }
    float most = -kInfinity;
#pragma omp simd reduction(max : most)
    for (int32_t n = 0; n < kFewGroup; ++n) {
      logits[n] = (seen >> n & 1u) != 0 ? logits[n] : -kInfinity;
      most = logits[n] > most ? logits[n] : most;
    }
    top = most;
  }
};

template <class T>
void few_join(const FewRows<T>& p) {
  const FlushDenormals flush;
  const int64_t d = p.k.width, e = p.v.width;
  float* const q = p.memory;
  float* __restrict out = q + kFewRows * d;
  for (int64_t first = 0; first < p.count; first += kFewRows) {
    const int64_t rows = p.count - first < kFewRows ? p.count - first : kFewRows;
    uint64_t any = 0;
    for (int64_t i = 0; i < rows; ++i) any |= p.seen[first + i];
    if (any == 0) continue;
    for (int64_t i = 0; i < kFewRows; ++i)
      widen(p.q + (first + (i < rows ? i : 0)) * p.q_row, d, q + i * d);
    for (int64_t i = 0; i < rows; ++i) widen(p.out + (first + i) * p.out_row, e, out + i * e);
    for (int64_t g = 0; g < p.k.groups; ++g) {
      if (of_group(any, g) == 0) continue;
      float products[kFewRows][kFewGroup], weights[kFewGroup];
      few_products(q, d, p.k.columns + g * d * kFewGroup, products);
      const float* const values = p.v.rows + g * kFewGroup * e;
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t row = first + i;
        const uint32_t seen = of_group(p.seen[row], g);
        if (seen == 0) continue;
        const float scale = p.tau != nullptr ? 1.0f / p.tau[row] : p.scale;
        const FewLogits few(products[i], scale, p.soft_cap, seen);
        const float lse = p.lse[row], top = few.top > lse ? few.top : lse;
        float total = 0.0f;
#pragma omp simd reduction(+ : total)
        for (int32_t n = 0; n < kFewGroup; ++n) {
          weights[n] = fast_exp(few.logits[n] - top);
          total += weights[n];
        }
        const float old = fast_exp(lse - top), all = old + total, share = 1.0f / all;
        p.lse[row] = top + __builtin_logf(all);
        float* const to = out + i * e;
        const float kept = old * share;
#pragma omp simd
        for (int64_t c = 0; c < e; ++c) to[c] *= kept;
        for (uint32_t left = seen; left != 0; left &= left - 1) {
          const int32_t n = __builtin_ctz(left);
          const float weight = weights[n] * share;
          const float* const value = values + n * e;
#pragma omp simd
          for (int64_t c = 0; c < e; ++c) to[c] += weight * value[c];
        }
      }
    }
    for (int64_t i = 0; i < rows; ++i) {
      if (p.seen[first + i] == 0) continue;
      T* const to = p.out + (first + i) * p.out_row;
#pragma omp simd
      for (int64_t c = 0; c < e; ++c) from_float(out[i * e + c], to[c]);
    }
  }
}

FOVEA_INLINE float row_product(const float* a, const float* b, int64_t width) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < width; ++c) sum += a[c] * b[c];
  return sum;
}

template <class T>
void few_gradient(const FewGradientRows<T>& p) {
  const FlushDenormals flush;
  const int64_t d = p.k.width, e = p.v.width;
  float* const q = p.memory;
  float* const dq = q + kFewRows * d;
  float* const dout = dq + kFewRows * d;
  float* const out = dout + kFewRows * e;
  for (int64_t first = 0; first < p.count; first += kFewRows) {
    const int64_t rows = p.count - first < kFewRows ? p.count - first : kFewRows;
    uint64_t any = 0;
    for (int64_t i = 0; i < rows; ++i) any |= p.seen[first + i];
    if (any == 0) continue;
    float less[kFewRows] = {};  // dO . O - dlse
    for (int64_t i = 0; i < kFewRows; ++i) {
      const int64_t row = first + (i < rows ? i : 0);
      widen(p.q + row * p.q_row, d, q + i * d);
      widen(p.dout + row * p.dout_row, e, dout + i * e);
      if (i >= rows) continue;
      widen(p.out + row * p.out_row, e, out);
      widen(p.dq + row * p.dq_row, d, dq + i * d);
      less[i] = row_product(dout + i * e, out, e) - (p.dlse != nullptr ? p.dlse[row] : 0.0f);
    }
    for (int64_t g = 0; g < p.k.groups; ++g) {
      if (of_group(any, g) == 0) continue;
      float products[kFewRows][kFewGroup], of_values[kFewRows][kFewGroup];
      few_products(q, d, p.k.columns + g * d * kFewGroup, products);
      few_products(dout, e, p.v.columns + g * e * kFewGroup, of_values);
      const int64_t key = g * kFewGroup;
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t row = first + i;
        const uint32_t seen = of_group(p.seen[row], g);
        if (seen == 0) continue;
        const float scale = p.tau != nullptr ? 1.0f / p.tau[row] : p.scale;
        const FewLogits few(products[i], scale, p.soft_cap, seen);
        float weights[kFewGroup], ds[kFewGroup], turn = 0.0f;
        const float lse = p.lse[row];
#pragma omp simd
        for (int32_t n = 0; n < kFewGroup; ++n) {
          weights[n] = fast_exp(few.logits[n] - lse);
          ds[n] = weights[n] * (of_values[i][n] - less[i]) * few.slopes[n];
        }
        float* const __restrict to_q = dq + i * d;
        const float* const __restrict from_q = q + i * d, * const __restrict from = dout + i * e;
        for (uint32_t left = seen; left != 0; left &= left - 1) {
          const int32_t n = __builtin_ctz(left);
          const float slope = ds[n] * scale, weight = weights[n];
          turn += ds[n] * few.scaled[n];
          const float* const __restrict k = p.k.rows + (key + n) * d;
          float* const __restrict dk = p.dk + (key + n) * d, * const __restrict dv =
                                                                 p.dv + (key + n) * e;
#pragma omp simd
          for (int64_t c = 0; c < d; ++c) {
            to_q[c] += slope * k[c];
            dk[c] += slope * from_q[c];
          }
#pragma omp simd
          for (int64_t c = 0; c < e; ++c) dv[c] += weight * from[c];
        }
        if (p.dtau != nullptr) p.dtau[row] -= turn * scale;  // s = q.k / tau
      }
    }
    for (int64_t i = 0; i < rows; ++i) {
      if (p.seen[first + i] == 0) continue;
      T* const to = p.dq + (first + i) * p.dq_row;
#pragma omp simd
      for (int64_t c = 0; c < d; ++c) from_float(dq[i * d + c], to[c]);
    }
  }
}

template <class T>
constexpr FewKeysTable<T> kFewKeys{few_join<T>, few_gradient<T>};

}  // namespace
}  // namespace fovea::kernels
