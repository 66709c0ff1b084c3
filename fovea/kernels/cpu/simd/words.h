// Words of packed operands, and how two of them multiply. A word is 32 bits: one float32, or a pair
// of neighbouring bfloat16.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/simd/lanes.h"

namespace fovea::kernels {
namespace {

struct Single {
  static constexpr int kElements = 1, kExpDegree = 5;
  static constexpr bool kTiles = false;
  static FOVEA_INLINE Float multiply_add(Float a, Float b, Float c) { return a * b + c; }
  /// Stores two vectors of one row of P or dS as words.
  static FOVEA_INLINE void store_row(float* p, Float low, Float high) {
    store(p, low);
    store(p + kLanes, high);
  }
  /// Stores one vector; the words of a panel's second half are kLanes / kElements further on.
  static FOVEA_INLINE void store_half(float* p, Float x) { store(p, x); }
  /// Partial sums of one row of P as it is multiplied.
  static FOVEA_INLINE Float row_sums(Float low, Float high) { return low + high; }
};

#if defined(FOVEA_PAIRS)

struct Pair {
  static constexpr int kElements = 2, kExpDegree = 3;
  static constexpr bool kTiles = false;
  static FOVEA_INLINE Float multiply_add(Float a, Float b, Float c) {
    return pair_products(a, b, c);
  }
  static FOVEA_INLINE void store_row(float* p, Float low, Float high) {
    store(p, halves_of(low, high));
  }
  static FOVEA_INLINE void store_half(float* p, Float x) { store_halves(p, x); }
  /// Sums the rounded weights: a row then has norm 1, however sharp it is.
  static FOVEA_INLINE Float row_sums(Float low, Float high) {
    const Int words = reinterpret_cast<Int>(halves_of(low, high));
    return reinterpret_cast<Float>(words << 16) + reinterpret_cast<Float>(words & ~0xFFFF);
  }
  /// Two rows of 2 kLanes bfloat16 as pairs: word n of `low` holds columns n of both, of `high`
  /// kLanes + n.
  static FOVEA_INLINE void weave(Float even, Float odd, Float& low, Float& high) {
    weave_halves(even, odd, low, high);
  }
  /// 2 kLanes bfloat16.
  static FOVEA_INLINE Float load(const uint16_t* p) {
    Float x;
    __builtin_memcpy(&x, p, sizeof(x));
    return x;
  }
  /// Words of each of kLanes bfloat16 and the one behind it.
  static FOVEA_INLINE Float neighbours(const uint16_t* p) { return neighbouring_halves(p); }
};

/// The words that vectors of this instruction set multiply fastest.
using VectorWords = Pair;

#else

/// Never used: no instruction multiplies pairs.
struct Pair {
  static constexpr int kElements = 2, kExpDegree = 3;
  static constexpr bool kTiles = false;
  static FOVEA_INLINE Float multiply_add(Float, Float, Float c) { return c; }
  static FOVEA_INLINE void store_row(float*, Float, Float) {}
  static FOVEA_INLINE void store_half(float*, Float) {}
  static FOVEA_INLINE Float row_sums(Float low, Float) { return low; }
  static FOVEA_INLINE void weave(Float, Float, Float&, Float&) {}
  static FOVEA_INLINE Float load(const uint16_t*) { return Float{}; }
  static FOVEA_INLINE Float neighbours(const uint16_t*) { return Float{}; }
};
using VectorWords = Single;

#endif

}  // namespace
}  // namespace fovea::kernels
