// The loops of selector.h, written once and compiled once per instruction set.
//
// Included by selector_<isa>.cpp only, inside an anonymous namespace: every function has internal
// linkage, because a copy built for a wide instruction set must never serve a narrow caller. No
// standard containers here, for the same reason.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/common/vector_math.h"
#include "fovea/kernels/cpu/selector.h"

namespace fovea::kernels {
namespace {

// Keys whose logits stay in the first-level cache while all components are added.
constexpr int64_t kLogitTile = 1024;
// Keys ahead of use that are fetched: a component's keys are one run of memory, and a tile ends
// before the hardware has learned it.
constexpr int64_t kFetchBytes = 64;

template <class T>
FOVEA_INLINE void fetch_run(const T* keys, int64_t count) {
  const char* const bytes = reinterpret_cast<const char*>(keys);
  for (int64_t n = 0; n < count * static_cast<int64_t>(sizeof(T)); n += kFetchBytes)
    __builtin_prefetch(bytes + n, 0, 2);
}

// Four components at a time, so that a logit is loaded and stored once for all of them.
template <class T>
FOVEA_INLINE void add_four(const T* const (&keys)[4], const float* q, int64_t length, float* to) {
  const T* __restrict a = keys[0];
  const T* __restrict b = keys[1];
  const T* __restrict c = keys[2];
  const T* __restrict d = keys[3];
  const float qa = q[0], qb = q[1], qc = q[2], qd = q[3];
  float* __restrict x = to;
#pragma omp simd
  for (int64_t j = 0; j < length; ++j)
    x[j] +=
        (qa * to_float(a[j]) + qb * to_float(b[j])) + (qc * to_float(c[j]) + qd * to_float(d[j]));
}

template <class T>
FOVEA_INLINE void add_one(const T* keys, float q, int64_t length, float* to) {
  const T* __restrict a = keys;
  float* __restrict x = to;
#pragma omp simd
  for (int64_t j = 0; j < length; ++j) x[j] += q * to_float(a[j]);
}

template <class T>
void component_logits(const T* keys, int64_t component, const int32_t* components, int64_t count,
                      const float* q, int64_t heads, float* logits, int64_t length) {
  for (int64_t begin = 0; begin < length; begin += kLogitTile) {
    const int64_t n = length - begin < kLogitTile ? length - begin : kLogitTile;
    const int64_t next = length - begin - n < kLogitTile ? length - begin - n : kLogitTile;
    const auto run_of = [&](int64_t c) { return keys + components[c] * component + begin; };
    for (int64_t h = 0; h < heads; ++h) __builtin_memset(logits + h * length + begin, 0, 4 * n);
    int64_t c = 0;
    for (; c + 4 <= count; c += 4) {
      const T* const runs[4] = {run_of(c), run_of(c + 1), run_of(c + 2), run_of(c + 3)};
      for (const T* run : runs) fetch_run(run + n, next);
      for (int64_t h = 0; h < heads; ++h)
        add_four(runs, q + h * count + c, n, logits + h * length + begin);
    }
    for (; c < count; ++c) {
      for (int64_t h = 0; h < heads; ++h)
        add_one(run_of(c), q[h * count + c], n, logits + h * length + begin);
    }
  }
}

inline float exponentials(float* to, int64_t length) {
  float* __restrict x = to;
  float top = x[0], sum = 0;
#pragma omp simd reduction(max : top)
  for (int64_t j = 0; j < length; ++j) top = x[j] > top ? x[j] : top;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < length; ++j) {
    const float weight = fast_exp(x[j] - top);
    x[j] = weight;
    sum += weight;
  }
  return 1.0f / sum;
}

inline void scores(const float* weights, int64_t pitch, const float* factors, int64_t heads,
                   int64_t length, float* to, float* maxima) {
  float* __restrict s = to;
  for (int64_t h = 0; h < heads; ++h) {
    const float* __restrict w = weights + h * pitch;
    const float factor = factors[h];
    if (h == 0) {
#pragma omp simd
      for (int64_t j = 0; j < length; ++j) s[j] = factor * w[j];
    } else {
#pragma omp simd
      for (int64_t j = 0; j < length; ++j) s[j] += factor * w[j];
    }
  }
  for (int64_t begin = 0; begin < length; begin += kScoreBlock) {
    const int64_t n = length - begin < kScoreBlock ? length - begin : kScoreBlock;
    float top = s[begin];
#pragma omp simd reduction(max : top)
    for (int64_t j = 0; j < n; ++j) top = s[begin + j] > top ? s[begin + j] : top;
    maxima[begin / kScoreBlock] = top;
  }
}

template <class T>
void products(const float* query, const ListedRows<T>& rows, float* to) {
  constexpr int64_t kAhead = 8;
  const float* __restrict q = query;
  for (int64_t n = 0; n < rows.count; ++n) {
    if (n + kAhead < rows.count)
      fetch_run(rows.data + rows.list[n + kAhead] * rows.row, rows.width);
    const T* __restrict k = rows.data + rows.list[n] * rows.row;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < rows.width; ++c) sum += q[c] * to_float(k[c]);
    to[n] = sum;
  }
}

template <class T>
void weighted_sum(const float* weights, const ListedRows<T>& rows, float* to) {
  constexpr int64_t kAhead = 8;
  float* __restrict out = to;
  for (int64_t c = 0; c < rows.width; ++c) out[c] = 0;
  for (int64_t n = 0; n < rows.count; ++n) {
    if (n + kAhead < rows.count)
      fetch_run(rows.data + rows.list[n + kAhead] * rows.row, rows.width);
    const T* __restrict v = rows.data + rows.list[n] * rows.row;
    const float weight = weights[n];
#pragma omp simd
    for (int64_t c = 0; c < rows.width; ++c) out[c] += weight * to_float(v[c]);
  }
}

template <class T>
constexpr SelectorTable<T> kTable{component_logits<T>, exponentials, scores, products<T>,
                                  weighted_sum<T>};

}  // namespace
}  // namespace fovea::kernels
