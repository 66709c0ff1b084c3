// Functions of lanes.h by GCC's vector extension, for instruction sets that have no instruction of
// their own for them: all but AVX-512. lanes_<isa>.h includes it behind its own.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/simd/vectors.h"

namespace fovea::kernels {
namespace {

constexpr bool kMaskedLoads = false;

FOVEA_INLINE float largest(Float x) {
  float top = x[0];
  for (int i = 1; i < kLanes; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

FOVEA_INLINE Float load_first(const float* p, int64_t n) {
  float part[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) part[i] = p[i];
  return load(part);
}

FOVEA_INLINE bool any(Int mask) {
  int32_t all = 0;
  for (int i = 0; i < kLanes; ++i) all |= mask[i];
  return all != 0;
}

using Lanes = Int;
FOVEA_INLINE Lanes lanes_of(Int mask) { return mask; }
FOVEA_INLINE Lanes lanes_in_common(Int a, Int b) { return (a & b) != 0; }
FOVEA_INLINE Lanes lanes_below(Int x, int32_t limit) { return (x >= 0) & (x < limit); }
FOVEA_INLINE Float choose(Lanes seen, Float yes, Float no) { return seen ? yes : no; }
FOVEA_INLINE Lanes lanes_of_bits(uint64_t bits) {
  Int bit;
  for (int i = 0; i < kLanes; ++i) bit[i] = 1 << i;
  return (broadcast(static_cast<int32_t>(bits)) & bit) != 0;
}

FOVEA_INLINE Float inverse(Float x) { return 1.0f / x; }

/// Polynomials: least maximal relative error on [-1/2, 1/2], fitted for this file.
template <int degree>
FOVEA_INLINE Float exp2_lanes(Float x) {
  // 1.5 * 2^23 rounds to the nearest integer, which then stands in the lowest bits of the sum.
  constexpr float kRound = 12582912.0f;
  // NaN stays NaN: both give their second operand then.
  const Float limited = smaller(broadcast(128.0f), larger(broadcast(-127.0f), x));
  const Float shifted = limited + kRound;
  const Float f = limited - (shifted - kRound);
  Float p = 0.00132765f * f + 0.00967554f;
  p = p * f + 0.05550713f;
  p = p * f + 0.2402212f;
  p = p * f + 0.69314697f;
  p = p * f + 1.00000007f;
  // -127 becomes the factor 0 and 128 infinity.
  const Int exponent = reinterpret_cast<Int>(shifted) - __builtin_bit_cast(int32_t, kRound) + 127;
  return p * reinterpret_cast<Float>(exponent << 23);
}

template <int degree>
FOVEA_INLINE Float exp2_seen(Lanes seen, Float x) {
  return choose(seen, exp2_lanes<degree>(x), Float{});
}

// Elements of a row of a tensor.

using RowPart = int64_t;
FOVEA_INLINE RowPart row_part(int64_t count) { return count; }
FOVEA_INLINE Float load_row(const float* row, RowPart part) {
  Float x{};
  const int64_t n = part < kLanes ? part : kLanes;
  if (n > 0) __builtin_memcpy(&x, row, static_cast<size_t>(n) * sizeof(*row));
  return x;
}
FOVEA_INLINE Float load_row(const BFloat16* row, RowPart part) {
  Float x{};
  if (part >= 2 * kLanes) {
    __builtin_memcpy(&x, row, sizeof(x));
  } else if (part > 0) {
    __builtin_memcpy(&x, row, static_cast<size_t>(part) * sizeof(*row));
  }
  return x;
}
template <class T>
FOVEA_INLINE Float load_row_floats(const T* row, RowPart part) {
  float x[kLanes] = {};
  for (int64_t i = 0; i < part && i < kLanes; ++i) x[i] = to_float(row[i]);
  return load(x);
}

FOVEA_INLINE Float load_first_halves(const uint16_t* x, int64_t n) {
  static_assert(kLanes <= 8);
  if (n >= kLanes) return load_halves(x);
  // Put together in registers: a load of what was stored number by number waits for all stores.
  typedef uint64_t Words __attribute__((vector_size(16)));
  uint64_t low = 0, high = 0;
  for (int64_t i = 0; i < n; ++i) (i < 4 ? low : high) |= uint64_t{x[i]} << (i % 4 * 16);
  const Words some{low, high};
  uint16_t halves[8];
  __builtin_memcpy(halves, &some, sizeof(halves));
  return load_halves(halves);
}
FOVEA_INLINE Float load_eights(const float* x, int64_t n) {
  static_assert(kLanes <= 8);
  return broadcast(x[n]);
}

FOVEA_INLINE int64_t list_common(const uint64_t* x, uint64_t bits, int32_t first, int32_t* to) {
  int64_t count = 0;
  for (int32_t n = 0; n < 8; ++n) {  // without a branch
    to[count] = first + n;
    count += (x[n] & bits) != 0 ? 1 : 0;
  }
  return count;
}

}  // namespace
}  // namespace fovea::kernels
