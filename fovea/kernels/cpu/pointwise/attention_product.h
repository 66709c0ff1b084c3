// Packed operands of the attention kernels and the one product that works on them.
//
// A word is 32 bits: one float32, or two neighbouring bfloat16. In words all layouts are the same
// for both, so every kernel is written once. A panel is kPanel rows of q, k, v or dO; its layouts:
//   natural  [kPanel][pitch]           the rows themselves (left operand: words are broadcast)
//   columns  [pitch][kPanel]           transposed (right operand of q.k: one lane, one row)
//   rows     [kPanel / E][columns]     cut into tiles of kPanel columns (right operand of P v: one
//                                      lane, one column; with bfloat16, E = 2 rows share a word)
// Rows and columns of padding are zeros.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/simd/attention_lanes.h"

namespace fovea::kernels {
namespace {

/// What a word holds and how two of them multiply.
struct Single {
  static constexpr int kElements = 1, kExpDegree = 5;
  static constexpr bool kTiles = false;
  static FOVEA_INLINE Float multiply_add(Float a, Float b, Float c) { return a * b + c; }
  /// Stores two vectors of one row of P or dS as words.
  static FOVEA_INLINE void store_row(Word* p, Float low, Float high) {
    store(p, low);
    store(p + kLanes, high);
  }
  /// Stores one vector; the words of a panel's second half are kLanes / kElements further on.
  static FOVEA_INLINE void store_half(Word* p, Float x) { store(p, x); }
};

#if defined(__AVX512BF16__) || defined(FOVEA_PAIRS_EMULATED)
#define FOVEA_PAIRS

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
  static FOVEA_INLINE void store_row(Word* p, Float low, Float high) {
    store(p, halves_of(low, high));
  }
  static FOVEA_INLINE void store_half(Word* p, Float x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), halves_of(x));
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
};
#endif

/// The words that vectors of this instruction set multiply fastest.
#if defined(FOVEA_PAIRS)
using VectorWords = Pair;
#else
using VectorWords = Single;
#endif

/// c[R][N vectors] += a[R x depth words] b[depth x N vectors of words]: word (i, k) of the left
/// operand at a + i a_row + k a_step, row k of the right one at b + k b_row.
template <class P, int R, int N>
FOVEA_INLINE void multiply_add(Float (&c)[R][N], int64_t depth, const Word* a, int64_t a_row,
                               int64_t a_step, const Word* b, int64_t b_row) {
#pragma GCC unroll 2
  for (int64_t k = 0; k < depth; ++k) {
    Float right[N];
#pragma GCC unroll 2
    for (int v = 0; v < N; ++v) right[v] = load(b + k * b_row + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Float left = broadcast(a[i * a_row + k * a_step]);
#pragma GCC unroll 2
      for (int v = 0; v < N; ++v) c[i][v] = P::multiply_add(left, right[v], c[i][v]);
    }
  }
}

template <int R, int N>
FOVEA_INLINE void clear(Float (&c)[R][N]) {
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < N; ++v) c[i][v] = Float{};
  }
}

template <int R, int N>
FOVEA_INLINE void load_tile(Float (&c)[R][N], const float* from, int64_t row) {
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < N; ++v) c[i][v] = load(from + i * row + v * kLanes);
  }
}

template <int R, int N>
FOVEA_INLINE void store_tile(const Float (&c)[R][N], float* to, int64_t row) {
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < N; ++v) store(to + i * row + v * kLanes, c[i][v]);
  }
}

}  // namespace
}  // namespace fovea::kernels
