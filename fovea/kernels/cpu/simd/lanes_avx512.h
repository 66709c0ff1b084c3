// lanes.h for AVX-512 (F, BW, VL, DQ, CD), with VNNI where there is that: sixteen lanes.
//
// Some conversions have a mask that takes all: GCC 12 reports the plain ones of its own headers as
// uninitialised.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include "fovea/kernels/cpu/simd/vectors.h"

namespace fovea::kernels {
namespace {

constexpr bool kFused = true, kMaskedLoads = true;
constexpr __mmask16 kAllLanes = 0xFFFF;

FOVEA_INLINE __m512i whole(Int x) { return reinterpret_cast<__m512i>(x); }
FOVEA_INLINE __m512i whole(Bits x) { return reinterpret_cast<__m512i>(x); }
FOVEA_INLINE __m512i whole(Shorts x) { return reinterpret_cast<__m512i>(x); }
FOVEA_INLINE __m512i whole(Float x) { return reinterpret_cast<__m512i>(x); }
FOVEA_INLINE __m256i load_256(const void* x) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(x));
}
FOVEA_INLINE __m128i load_128(const void* x) {
  return _mm_loadu_si128(static_cast<const __m128i*>(x));
}

FOVEA_INLINE Float broadcast(float x) { return _mm512_set1_ps(x); }
FOVEA_INLINE Float larger(Float a, Float b) { return _mm512_max_ps(a, b); }
FOVEA_INLINE Float smaller(Float a, Float b) { return _mm512_min_ps(a, b); }
FOVEA_INLINE float largest(Float x) { return _mm512_reduce_max_ps(x); }
FOVEA_INLINE void keep_in_register(Float& x) { asm("" : "+v"(x)); }

// One step of Newton squares the error of the estimate: division takes twice as long as both.
FOVEA_INLINE Float inverse(Float x) {
  const Float y = _mm512_rcp14_ps(x);
  return y * (2.0f - x * y);
}

FOVEA_INLINE Float sum_each(const Float (&rows)[kLanes]) {
  // Half of a and half of b, plus what is left of both with neighbours exchanged: one shuffle where
  // two unpacks would be, and blends run beside it.
  const auto single = [](Float a, Float b) FOVEA_ALWAYS {
    return Float(_mm512_mask_blend_ps(0xAAAA, a, b)) +
           Float(_mm512_permute_ps(_mm512_mask_blend_ps(0x5555, a, b), 0xB1));
  };
  const auto two = [](Float a, Float b) FOVEA_ALWAYS {
    return Float(_mm512_mask_blend_ps(0xCCCC, a, b)) +
           Float(_mm512_permute_ps(_mm512_mask_blend_ps(0x3333, a, b), 0x4E));
  };
  const auto four = [](Float a, Float b) FOVEA_ALWAYS {
    const Float rest = _mm512_mask_blend_ps(0x0F0F, a, b);
    return Float(_mm512_mask_blend_ps(0xF0F0, a, b)) +
           Float(_mm512_shuffle_f32x4(rest, rest, 0xB1));
  };
  const auto eight = [](Float a, Float b) FOVEA_ALWAYS {
    const Float rest = _mm512_mask_blend_ps(0x00FF, a, b);
    return Float(_mm512_mask_blend_ps(0xFF00, a, b)) +
           Float(_mm512_shuffle_f32x4(rest, rest, 0x4E));
  };
  Float quads[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    quads[i] = two(single(rows[4 * i], rows[4 * i + 1]), single(rows[4 * i + 2], rows[4 * i + 3]));
  }
  return eight(four(quads[0], quads[1]), four(quads[2], quads[3]));
}
FOVEA_INLINE Four sum_to_four(Float x) {
  typedef float Eight __attribute__((vector_size(32)));
  const Eight eight = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
  return __builtin_shufflevector(eight, eight, 0, 1, 2, 3) +
         __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
}

// 16 x 16 words in registers: pairs of rows, of pairs, of quarters.
FOVEA_INLINE void transpose(Float (&rows)[kLanes]) {
  __m512i r[16], t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = whole(rows[i]);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    t[j] = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88);
    t[4 + j] = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xDD);
    t[8 + j] = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
    t[12 + j] = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xDD);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    r[j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0x88);
    r[8 + j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0xDD);
    r[4 + j] = _mm512_shuffle_i32x4(t[4 + j], t[12 + j], 0x88);
    r[12 + j] = _mm512_shuffle_i32x4(t[4 + j], t[12 + j], 0xDD);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) rows[i] = reinterpret_cast<Float>(r[i]);
}

// Choice among lanes, in registers of bits.

using Lanes = __mmask16;
FOVEA_INLINE Lanes lanes_of(Int mask) { return _mm512_movepi32_mask(whole(mask)); }
FOVEA_INLINE Lanes lanes_in_common(Int a, Int b) {
  return _mm512_test_epi32_mask(whole(a), whole(b));
}
FOVEA_INLINE Lanes lanes_below(Int x, int32_t limit) {
  return _mm512_cmplt_epu32_mask(whole(x), _mm512_set1_epi32(limit));
}
FOVEA_INLINE Lanes lanes_of_bits(uint64_t bits) { return static_cast<Lanes>(bits); }
FOVEA_INLINE Float choose(Lanes seen, Float yes, Float no) {
  return _mm512_mask_blend_ps(seen, no, yes);
}
FOVEA_INLINE bool any(Lanes seen) { return seen != 0; }
FOVEA_INLINE bool any(Int mask) { return _mm512_test_epi32_mask(whole(mask), whole(mask)) != 0; }

FOVEA_INLINE uint64_t bits_of(Int seen) { return _mm512_movepi32_mask(whole(seen)); }
FOVEA_INLINE uint32_t bits_above(const float* x, float bound) {
  return _mm512_cmp_ps_mask(load(x), broadcast(bound), _CMP_GT_OQ);
}
FOVEA_INLINE uint64_t bits_from_two(const uint8_t* x) {
  return _mm512_cmpge_epu8_mask(_mm512_loadu_si512(x), _mm512_set1_epi8(2));
}
FOVEA_INLINE int64_t list_common(const uint64_t* x, uint64_t bits, int32_t first, int32_t* to) {
  const __m512i common = _mm512_set1_epi64(static_cast<int64_t>(bits));
  const __m256i step = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __mmask8 found = _mm512_test_epi64_mask(_mm512_loadu_si512(x), common);
  const __m256i numbers = _mm256_add_epi32(_mm256_set1_epi32(first), step);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_maskz_compress_epi32(found, numbers));
  return __builtin_popcount(found);
}

// Exponentials.

/// 2^(x - floor(x)); scalef then multiplies by 2^floor(x). Polynomials: least maximal relative
/// error on [0, 1), fitted for this file.
template <int degree>
FOVEA_INLINE Float exp2_of_fraction(Float x) {
  const Float f = _mm512_reduce_ps(x, 0x09);
  Float p;
  if constexpr (degree == 3) {
    p = 0.07802446f * f + 0.22606725f;
    p = p * f + 0.69583351f;
    p = p * f + 0.99992522f;
  } else {
    p = 0.00187758f * f + 0.00898934f;
    p = p * f + 0.05582632f;
    p = p * f + 0.24015362f;
    p = p * f + 0.69315307f;
    p = p * f + 0.99999993f;
  }
  return p;
}
template <int degree>
FOVEA_INLINE Float exp2_lanes(Float x) {
  return _mm512_scalef_ps(exp2_of_fraction<degree>(x), x);
}
template <int degree>
FOVEA_INLINE Float exp2_seen(Lanes seen, Float x) {
  return _mm512_maskz_scalef_ps(seen, exp2_of_fraction<degree>(x), x);
}

// Parts of vectors, and numbers of other widths.

FOVEA_INLINE __mmask16 first_lanes(int64_t n) {
  return n >= kLanes ? kAllLanes : static_cast<__mmask16>((1u << n) - 1u);
}
FOVEA_INLINE Float load_first(const float* p, int64_t n) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1u), p);
}
using RowPart = uint32_t;
FOVEA_INLINE RowPart row_part(int64_t count) {
  if (count >= 32) return ~0u;
  return count > 0 ? (1u << count) - 1u : 0u;
}
FOVEA_INLINE Float load_row(const float* row, RowPart part) {
  return reinterpret_cast<Float>(_mm512_maskz_loadu_epi32(static_cast<__mmask16>(part), row));
}
FOVEA_INLINE Float load_row(const BFloat16* row, RowPart part) {
  return reinterpret_cast<Float>(_mm512_maskz_loadu_epi16(part, row));
}
FOVEA_INLINE Float load_row_floats(const float* row, RowPart part) { return load_row(row, part); }
FOVEA_INLINE Float load_row_floats(const BFloat16* row, RowPart part) {
  const __m256i x = _mm256_maskz_loadu_epi16(static_cast<__mmask16>(part), row);
  return reinterpret_cast<Float>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

FOVEA_INLINE Float load(const BFloat16* x) {
  const auto bits = reinterpret_cast<Bits>(_mm512_maskz_cvtepu16_epi32(kAllLanes, load_256(x)));
  return reinterpret_cast<Float>(bits << 16);
}
FOVEA_INLINE float load_half(uint16_t x) { return _cvtsh_ss(x); }
FOVEA_INLINE Float load_halves(const uint16_t* x) {
  return _mm512_maskz_cvtph_ps(kAllLanes, load_256(x));
}
FOVEA_INLINE Float load_first_halves(const uint16_t* x, int64_t n) {
  return _mm512_maskz_cvtph_ps(kAllLanes, _mm256_maskz_loadu_epi16(first_lanes(n), x));
}
FOVEA_INLINE Float load_first_bytes(const uint8_t* x, int64_t bytes) {
  return _mm512_maskz_loadu_ps(first_lanes(bytes / 4), x);
}
template <bool is_signed>
FOVEA_INLINE Shorts load_bytes(const uint8_t* x) {
  const __m256i bytes = load_256(x);
  return reinterpret_cast<Shorts>(is_signed ? _mm512_maskz_cvtepi8_epi16(~__mmask32{}, bytes)
                                            : _mm512_maskz_cvtepu8_epi16(~__mmask32{}, bytes));
}
FOVEA_INLINE Float load_int8(const uint8_t* x) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_128(x)));
}
template <int zero, bool with_m>
FOVEA_INLINE Float load_int4(const uint8_t* x, int64_t n, float d, float m) {
  // A table of all numbers of four bits, then a lookup, which reads the low four bits.
  const Float levels =
      Float{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} - static_cast<float>(zero);
  Float table = levels * d;
  if constexpr (with_m) table += m;
  __m512i both = _mm512_cvtepu8_epi32(load_128(x));
  if (n >= 16) both = _mm512_srli_epi32(both, 4);
  return _mm512_permutexvar_ps(both, table);
}
FOVEA_INLINE Float load_eights(const float* x, int64_t n) {
  const __m512i first = _mm512_set1_epi32(static_cast<int32_t>(n));
  const __m512i second = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
  return _mm512_maskz_permutexvar_ps(kAllLanes, _mm512_add_epi32(first, second), load(x));
}

FOVEA_INLINE Int to_nearest(Float x) {
  return reinterpret_cast<Int>(_mm512_maskz_cvtps_epi32(kAllLanes, x));
}
FOVEA_INLINE void store_bytes(const Int (&x)[2], int8_t* to) {
  for (int v = 0; v < 2; ++v)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + v * kLanes),
                     _mm512_maskz_cvtepi32_epi8(kAllLanes, whole(x[v])));
}

// Whole numbers.

#if defined(__AVX512VNNI__)
constexpr bool kDotsFours = true;
FOVEA_INLINE Int dot_pairs(Int sum, Shorts x, Shorts y) {
  return reinterpret_cast<Int>(_mm512_dpwssd_epi32(whole(sum), whole(x), whole(y)));
}
FOVEA_INLINE Int dot_fours(Int sum, Bits x, uint32_t y) {
  return reinterpret_cast<Int>(
      _mm512_dpbusd_epi32(whole(sum), whole(x), _mm512_set1_epi32(static_cast<int32_t>(y))));
}
#else
constexpr bool kDotsFours = false;
FOVEA_INLINE Int dot_pairs(Int sum, Shorts x, Shorts y) {
  return sum + reinterpret_cast<Int>(_mm512_madd_epi16(whole(x), whole(y)));
}
FOVEA_INLINE Int dot_fours(Int sum, Bits, uint32_t) { return sum; }  // never called
#endif

// Pairs of bfloat16 (words.h). Emulated they make the code around them run, and be tested, on CPUs
// without these instructions.

#if defined(FOVEA_PAIRS_EMULATED)
#define FOVEA_PAIRS
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
#elif defined(__AVX512BF16__)
#define FOVEA_PAIRS
FOVEA_INLINE Float pair_products(Float a, Float b, Float sums) {
  return _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}
FOVEA_INLINE __m256i halves_of(Float x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }
FOVEA_INLINE Float halves_of(Float low, Float high) {
  return reinterpret_cast<Float>(_mm512_cvtne2ps_pbh(high, low));
}
#endif

#if defined(FOVEA_PAIRS)
FOVEA_INLINE void store_halves(float* p, Float x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), halves_of(x));
}
FOVEA_INLINE void weave_halves(Float even, Float odd, Float& low, Float& high) {
  alignas(64) static constexpr uint16_t kLow[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                    37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                    11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i at = _mm512_load_si512(kLow), next = _mm512_add_epi16(at, _mm512_set1_epi16(16));
  const __m512i a = reinterpret_cast<__m512i>(even), b = reinterpret_cast<__m512i>(odd);
  low = reinterpret_cast<Float>(_mm512_permutex2var_epi16(a, at, b));
  high = reinterpret_cast<Float>(_mm512_permutex2var_epi16(a, next, b));
}
FOVEA_INLINE Float neighbouring_halves(const uint16_t* p) {
  alignas(64) static constexpr uint16_t kNeighbours[32] = {
      0, 1, 1, 2,  2,  3,  3,  4,  4,  5,  5,  6,  6,  7,  7,  8,
      8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15, 16};
  return reinterpret_cast<Float>(
      _mm512_permutexvar_epi16(_mm512_load_si512(kNeighbours), _mm512_loadu_si512(p)));
}
#endif

}  // namespace
}  // namespace fovea::kernels
