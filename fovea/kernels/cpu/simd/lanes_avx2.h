// lanes.h for AVX2 with FMA and F16C: eight lanes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include "fovea/kernels/cpu/simd/vectors.h"

namespace fovea::kernels {
namespace {

constexpr bool kFused = true, kDotsFours = false;

FOVEA_INLINE __m128i load_128(const void* x) {
  return _mm_loadu_si128(static_cast<const __m128i*>(x));
}
FOVEA_INLINE __m256i whole(Int x) { return reinterpret_cast<__m256i>(x); }
FOVEA_INLINE __m256i whole(Shorts x) { return reinterpret_cast<__m256i>(x); }

FOVEA_INLINE Float broadcast(float x) { return _mm256_set1_ps(x); }
FOVEA_INLINE Float larger(Float a, Float b) { return _mm256_max_ps(a, b); }
FOVEA_INLINE Float smaller(Float a, Float b) { return _mm256_min_ps(a, b); }

FOVEA_INLINE Float sum_each(const Float (&rows)[kLanes]) {
  const Float a =
      _mm256_hadd_ps(_mm256_hadd_ps(rows[0], rows[1]), _mm256_hadd_ps(rows[2], rows[3]));
  const Float b =
      _mm256_hadd_ps(_mm256_hadd_ps(rows[4], rows[5]), _mm256_hadd_ps(rows[6], rows[7]));
  return Float(_mm256_permute2f128_ps(a, b, 0x20)) + Float(_mm256_permute2f128_ps(a, b, 0x31));
}
FOVEA_INLINE Four sum_to_four(Float x) {
  return __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
}
FOVEA_INLINE void keep_in_register(Float& x) { asm("" : "+x"(x)); }

// 8 x 8 words in registers: pairs of rows, of pairs, of halves.
FOVEA_INLINE void transpose(Float (&r)[kLanes]) {
  Float t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xEE);
    r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm256_permute2f128_ps(r[i], r[4 + i], 0x20);
    t[4 + i] = _mm256_permute2f128_ps(r[i], r[4 + i], 0x31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = t[i];
}

FOVEA_INLINE uint64_t bits_of(Int seen) {
  return static_cast<uint64_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(seen)));
}
FOVEA_INLINE uint32_t bits_above(const float* x, float bound) {
  const Float above = _mm256_cmp_ps(load(x), broadcast(bound), _CMP_GT_OQ);
  return static_cast<uint32_t>(_mm256_movemask_ps(above));
}
FOVEA_INLINE uint64_t bits_from_two(const uint8_t* x) {
  uint64_t bits = 0;
  const __m256i two = _mm256_set1_epi8(2);
  for (int64_t n = 0; n < 64; n += 32) {
    const __m256i some = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + n));
    const __m256i enough = _mm256_cmpeq_epi8(_mm256_max_epu8(some, two), some);
    bits |= uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(enough))} << n;
  }
  return bits;
}

// Numbers of other widths.

FOVEA_INLINE Float load(const BFloat16* x) {
  return reinterpret_cast<Float>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(x)), 16));
}
FOVEA_INLINE float load_half(uint16_t x) { return _cvtsh_ss(x); }
FOVEA_INLINE Float load_halves(const uint16_t* x) { return _mm256_cvtph_ps(load_128(x)); }
FOVEA_INLINE Float load_first_bytes(const uint8_t* x, int64_t bytes) {
  const __m128i low = load_128(x), high = bytes >= 32 ? load_128(x + 16) : _mm_setzero_si128();
  return reinterpret_cast<Float>(_mm256_set_m128i(high, low));
}
template <bool is_signed>
FOVEA_INLINE Shorts load_bytes(const uint8_t* x) {
  const __m128i bytes = load_128(x);
  return reinterpret_cast<Shorts>(is_signed ? _mm256_cvtepi8_epi16(bytes)
                                            : _mm256_cvtepu8_epi16(bytes));
}
FOVEA_INLINE Float load_int8(const uint8_t* x) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x))));
}
template <int zero, bool with_m>
FOVEA_INLINE Float load_int4(const uint8_t* x, int64_t n, float d, float m) {
  const float offset = with_m ? m : -static_cast<float>(zero) * d;
  const __m256i both =
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x + n % 16)));
  const __m256i bits =
      n >= 16 ? _mm256_srli_epi32(both, 4) : _mm256_and_si256(both, _mm256_set1_epi32(15));
  return Float(_mm256_cvtepi32_ps(bits)) * d + offset;
}

FOVEA_INLINE Int dot_pairs(Int sum, Shorts x, Shorts y) {
  return sum + reinterpret_cast<Int>(_mm256_madd_epi16(whole(x), whole(y)));
}
FOVEA_INLINE Int dot_fours(Int sum, Bits, uint32_t) { return sum; }  // never called

FOVEA_INLINE Int to_nearest(Float x) { return reinterpret_cast<Int>(_mm256_cvtps_epi32(x)); }
FOVEA_INLINE void store_bytes(const Int (&x)[4], int8_t* to) {
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(whole(x[0]), whole(x[1])),
                                           _mm256_packs_epi32(whole(x[2]), whole(x[3])));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(bytes, order));
}

}  // namespace
}  // namespace fovea::kernels

#include "fovea/kernels/cpu/simd/lanes_portable.h"
