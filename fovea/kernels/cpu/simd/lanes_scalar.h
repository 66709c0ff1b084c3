// lanes.h for machines whose instructions we do not name: lane by lane, of which compilers make
// what they can.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/simd/vectors.h"

namespace fovea::kernels {
namespace {

constexpr bool kFused = false, kDotsFours = false;

FOVEA_INLINE Float broadcast(float x) { return x - Float{}; }
FOVEA_INLINE Float larger(Float a, Float b) { return a > b ? a : b; }
FOVEA_INLINE Float smaller(Float a, Float b) { return a < b ? a : b; }

FOVEA_INLINE Float sum_each(const Float (&rows)[kLanes]) {
  Float out{};
  for (int i = 0; i < kLanes; ++i) out[i] = sum(rows[i]);
  return out;
}
FOVEA_INLINE Four sum_to_four(Float x) { return x; }
FOVEA_INLINE void keep_in_register(Float&) {}

FOVEA_INLINE void transpose(Float (&rows)[kLanes]) {
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < i; ++j) {
      const float kept = rows[i][j];
      rows[i][j] = rows[j][i];
      rows[j][i] = kept;
    }
  }
}

FOVEA_INLINE uint64_t bits_of(Int seen) {
  uint64_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= static_cast<uint64_t>(seen[i] & 1) << i;
  return bits;
}
FOVEA_INLINE uint32_t bits_above(const float* x, float bound) {
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= static_cast<uint32_t>(x[i] > bound) << i;
  return bits;
}
FOVEA_INLINE uint64_t bits_from_two(const uint8_t* x) {
  uint64_t bits = 0;
  for (int64_t n = 0; n < 64; ++n) bits |= uint64_t{x[n] >= 2} << n;
  return bits;
}

// Numbers of other widths.

FOVEA_INLINE Float load(const BFloat16* x) {
  Float y;
  for (int i = 0; i < kLanes; ++i) y[i] = to_float(x[i]);
  return y;
}
FOVEA_INLINE float load_half(uint16_t x) { return half_to_float(x); }
FOVEA_INLINE Float load_halves(const uint16_t* x) {
  Float y;
  for (int i = 0; i < kLanes; ++i) y[i] = half_to_float(x[i]);
  return y;
}
FOVEA_INLINE Float load_first_bytes(const uint8_t* x, int64_t) {
  Float y;
  __builtin_memcpy(&y, x, sizeof(y));
  return y;
}
template <bool is_signed>
FOVEA_INLINE Shorts load_bytes(const uint8_t* x) {
  Shorts y;
  for (int i = 0; i < 2 * kLanes; ++i)
    y[i] = static_cast<int16_t>(is_signed ? static_cast<int8_t>(x[i]) : x[i]);
  return y;
}
FOVEA_INLINE Float load_int8(const uint8_t* x) {
  Float y;
  for (int i = 0; i < kLanes; ++i) y[i] = static_cast<float>(static_cast<int8_t>(x[i]));
  return y;
}
template <int zero, bool with_m>
FOVEA_INLINE Float load_int4(const uint8_t* x, int64_t n, float d, float m) {
  Float y;
  for (int64_t i = 0; i < kLanes; ++i) {
    const int bits = x[(n + i) % 16] >> (n >= 16 ? 4 : 0) & 15;
    y[i] = static_cast<float>(bits - zero) * d;
    if constexpr (with_m) y[i] += m;
  }
  return y;
}

FOVEA_INLINE Int dot_pairs(Int sum, Shorts x, Shorts y) {
  const auto a = reinterpret_cast<Int>(x), b = reinterpret_cast<Int>(y);
  return sum + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
}
FOVEA_INLINE Int dot_fours(Int sum, Bits, uint32_t) { return sum; }  // never called

FOVEA_INLINE Int to_nearest(Float x) {
  Int y;
  for (int i = 0; i < kLanes; ++i) y[i] = static_cast<int32_t>(__builtin_lrintf(x[i]));
  return y;
}
FOVEA_INLINE void store_bytes(const Int (&x)[32 / kLanes], int8_t* to) {
  for (int i = 0; i < 32; ++i) to[i] = static_cast<int8_t>(x[i / kLanes][i % kLanes]);
}

}  // namespace
}  // namespace fovea::kernels

#include "fovea/kernels/cpu/simd/lanes_portable.h"
