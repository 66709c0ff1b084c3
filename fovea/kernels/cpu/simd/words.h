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

#if defined(__AVX512BF16__) || defined(FOVEA_PAIRS_EMULATED)

// The three instructions for bfloat16. Emulated they make the code around them run, and be tested,
// on CPUs without them.
#if defined(FOVEA_PAIRS_EMULATED)
FOVEA_INLINE Float pair_products(Float a, Float b, Float sums) {
  const auto even = [](Float x) FOVEA_ALWAYS {
    return reinterpret_cast<Float>(reinterpret_cast<Int>(x) << 16);
  };
  const auto odd = [](Float x) FOVEA_ALWAYS {
    return reinterpret_cast<Float>(reinterpret_cast<Int>(x) & ~0xFFFF);
  };
  return even(a) * even(b) + (odd(a) * odd(b) + sums);
}
FOVEA_INLINE __m256i halves_of(Float x) {
  const Int bits = reinterpret_cast<Int>(x), nan = x != x;
  const Int rounded = bits + 0x7FFF + ((bits >> 16) & 1);
  return _mm512_cvtepi32_epi16(
      reinterpret_cast<__m512i>((nan ? broadcast(0x7FC00000) : rounded) >> 16));
}
FOVEA_INLINE Float halves_of(Float low, Float high) {
  return reinterpret_cast<Float>(
      _mm512_inserti64x4(_mm512_castsi256_si512(halves_of(low)), halves_of(high), 1));
}
#else
FOVEA_INLINE Float pair_products(Float a, Float b, Float sums) {
  return _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}
FOVEA_INLINE __m256i halves_of(Float x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }
FOVEA_INLINE Float halves_of(Float low, Float high) {
  return reinterpret_cast<Float>(_mm512_cvtne2ps_pbh(high, low));
}
#endif

struct Pair {
  static constexpr int kElements = 2, kExpDegree = 3;
  static constexpr bool kTiles = false;
  static FOVEA_INLINE Float multiply_add(Float a, Float b, Float c) {
    return pair_products(a, b, c);
  }
  static FOVEA_INLINE void store_row(float* p, Float low, Float high) {
    store(p, halves_of(low, high));
  }
  static FOVEA_INLINE void store_half(float* p, Float x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), halves_of(x));
  }
  /// Sums the rounded weights: a row then has norm 1, however sharp it is.
  static FOVEA_INLINE Float row_sums(Float low, Float high) {
    const Int words = reinterpret_cast<Int>(halves_of(low, high));
    return reinterpret_cast<Float>(words << 16) + reinterpret_cast<Float>(words & ~0xFFFF);
  }
  /// Two rows of 32 bfloat16 as pairs: word n of `low` holds columns n of both, of `high` 16 + n.
  static FOVEA_INLINE void weave(Float even, Float odd, Float& low, Float& high) {
    alignas(64) static constexpr uint16_t kLow[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                      37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                      11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i at = _mm512_load_si512(kLow), next = _mm512_add_epi16(at, _mm512_set1_epi16(16));
    const __m512i a = reinterpret_cast<__m512i>(even), b = reinterpret_cast<__m512i>(odd);
    low = reinterpret_cast<Float>(_mm512_permutex2var_epi16(a, at, b));
    high = reinterpret_cast<Float>(_mm512_permutex2var_epi16(a, next, b));
  }
  /// 32 bfloat16.
  static FOVEA_INLINE Float load(const uint16_t* p) {
    return reinterpret_cast<Float>(_mm512_loadu_si512(p));
  }
  /// Words of each of 16 bfloat16 and the one behind it.
  static FOVEA_INLINE Float neighbours(const uint16_t* p) {
    alignas(64) static constexpr uint16_t kNeighbours[32] = {
        0, 1, 1, 2,  2,  3,  3,  4,  4,  5,  5,  6,  6,  7,  7,  8,
        8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15, 16};
    return reinterpret_cast<Float>(
        _mm512_permutexvar_epi16(_mm512_load_si512(kNeighbours), _mm512_loadu_si512(p)));
  }
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
