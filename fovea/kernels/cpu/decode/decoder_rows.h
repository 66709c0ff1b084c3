// The row loops of decoder.h, written once and compiled once per instruction set
// (kernel_table.h says why everything here has internal linkage).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/decode/decoder_table.h"
#include "fovea/kernels/cpu/kernel_table.h"

namespace fovea::kernels {
namespace {

/// x as a T would hold it.
template <class T>
FOVEA_INLINE float rounded(float x) {
  T y;
  from_float(x, y);
  return to_float(y);
}

template <class T>
void widen(const T* x, int64_t n, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = to_float(x[i]);
}

template <class T>
void narrow(const float* x, const float* bias, int64_t n, T* y) {
  if (bias == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) from_float(x[i], y[i]);
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) from_float(rounded<T>(x[i]) + rounded<T>(bias[i]), y[i]);
}

template <class T>
void add(const T* a, const T* b, int64_t n, T* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) from_float(to_float(a[i]) + to_float(b[i]), y[i]);
}

inline float dot_of(const float* a, const float* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

template <class T>
void layer_norm(const T* x, const float* weight, const float* bias, float eps, int64_t n, T* y) {
  float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += to_float(x[i]);
  const float mean = sum / static_cast<float>(n);
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < n; ++i) squares += (to_float(x[i]) - mean) * (to_float(x[i]) - mean);
  const float scale = 1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) {
    float value = (to_float(x[i]) - mean) * scale;
    if (weight != nullptr) value *= weight[i];
    if (bias != nullptr) value += bias[i];
    from_float(value, y[i]);
  }
}

template <class T>
void to_length(const T* x, float length, int64_t n, T* y) {
  constexpr float kTiny = 1e-24f;  // of a squared length: zero vectors stay zero
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < n; ++i) squares += to_float(x[i]) * to_float(x[i]);
  const float scale = 1.0f / __builtin_sqrtf(squares > kTiny ? squares : kTiny);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) from_float(to_float(x[i]) * scale * length, y[i]);
}

/// y = a(x), times the factor.
template <Activation a, class T>
FOVEA_INLINE void activate_by(const T* x, const T* factor, int64_t n, T* y) {
  if (factor == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) from_float(activated<a>(to_float(x[i])), y[i]);
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    from_float(rounded<T>(activated<a>(to_float(x[i]))) * to_float(factor[i]), y[i]);
}

template <class T>
void activate(Activation activation, const T* x, const T* factor, int64_t n, T* y) {
  with_activation(activation,
                  [&]<Activation a>() FOVEA_ALWAYS { activate_by<a, T>(x, factor, n, y); });
}

template <Isa isa, class T>
constexpr DecoderTable<T> table_of() {
  return {widen<T>, narrow<T>, add<T>, dot_of, layer_norm<T>, to_length<T>, activate<T>};
}

}  // namespace
}  // namespace fovea::kernels
