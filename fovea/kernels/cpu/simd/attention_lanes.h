// Vectors of the attention kernels: as many lanes as the instruction set has, written once.
//
// GCC's vector extension gives arithmetic and comparison; intrinsics stand only where one
// instruction replaces many. Everything has internal linkage (kernel_table.h says why).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/kernels/common/bfloat16.h"
#include "fovea/kernels/cpu/pointwise/attention_table.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fovea::kernels {
namespace {

// kRows x 2 sums must fit the registers with two operands beside them: 32 registers of 16 lanes, 16
// of 8 (or 4). With tiles they are 2 x 2 of the 8 tiles (attention_tiles.h), or 1 x 2 where a
// source says so.
#if defined(FOVEA_TILES)
#if !defined(FOVEA_ROW_TILES)
#define FOVEA_ROW_TILES 2
#endif
constexpr int kLanes = 16, kRows = 16 * FOVEA_ROW_TILES;
#elif defined(__AVX512F__)
constexpr int kLanes = 16, kRows = 8;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kRows = 4;
#else
constexpr int kLanes = 4, kRows = 4;
#endif
constexpr int kPanel = 2 * kLanes;  // keys (backward: queries) of one tile

typedef float Float __attribute__((vector_size(4 * kLanes), may_alias));
typedef int32_t Int __attribute__((vector_size(4 * kLanes), may_alias));
typedef float FloatAt __attribute__((vector_size(4 * kLanes), may_alias, aligned(4)));
typedef int32_t IntAt __attribute__((vector_size(4 * kLanes), may_alias, aligned(4)));

constexpr float kInfinity = __builtin_inff();
constexpr float kLog2E = 1.44269504f, kLn2 = 0.69314718f;

/// Takes in what a row has seen of other keys, under its own reference; returns the factor of their
/// sums.
FOVEA_INLINE float merge(RowState& row, const RowState& other, bool stats) {
  const float shift = other.reference - row.reference;
  const float factor = shift == 0.0f ? 1.0f : __builtin_exp2f(shift);
  row.total += factor * other.total;
  if (!stats) return factor;
  row.spread += factor * (other.spread + other.total * shift);
  row.first += factor * other.first;
  const float largest = other.largest + shift;
  if (largest > row.largest) row.largest = largest;
  return factor;
}

FOVEA_INLINE Float load(const float* p) { return *reinterpret_cast<const FloatAt*>(p); }
FOVEA_INLINE Int load(const int32_t* p) { return *reinterpret_cast<const IntAt*>(p); }
FOVEA_INLINE void store(float* p, Float x) { *reinterpret_cast<FloatAt*>(p) = x; }
FOVEA_INLINE Int broadcast(int32_t x) { return x - Int{}; }

FOVEA_INLINE Float broadcast(float x) {
#if defined(__AVX512F__)
  return _mm512_set1_ps(x);
#elif defined(__AVX2__)
  return _mm256_set1_ps(x);
#else
  return x - Float{};
#endif
}

FOVEA_INLINE Float larger(Float a, Float b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

FOVEA_INLINE float largest(Float x) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(x);
#else
  float top = x[0];
  for (int i = 1; i < kLanes; ++i) top = x[i] > top ? x[i] : top;
  return top;
#endif
}

/// The sum of all lanes, always in the same order.
FOVEA_INLINE float sum(Float x) {
  float part[kLanes];
  store(part, x);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) part[i] += part[i + width];
  }
  return part[0];
}

/// Lane n becomes the sum of all lanes of rows[n].
FOVEA_INLINE Float sum_each(const Float (&rows)[kLanes]) {
#if defined(__AVX512F__)
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
#elif defined(__AVX2__)
  const Float a =
      _mm256_hadd_ps(_mm256_hadd_ps(rows[0], rows[1]), _mm256_hadd_ps(rows[2], rows[3]));
  const Float b =
      _mm256_hadd_ps(_mm256_hadd_ps(rows[4], rows[5]), _mm256_hadd_ps(rows[6], rows[7]));
  return Float(_mm256_permute2f128_ps(a, b, 0x20)) + Float(_mm256_permute2f128_ps(a, b, 0x31));
#else
  Float out{};
  for (int i = 0; i < kLanes; ++i) out[i] = sum(rows[i]);
  return out;
#endif
}

/// The first n floats at p, zeros behind them; reads nothing else.
FOVEA_INLINE Float load_first(const float* p, int64_t n) {
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1u), p);
#else
  float part[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) part[i] = p[i];
  return load(part);
#endif
}

FOVEA_INLINE bool any(Int mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(mask), reinterpret_cast<__m512i>(mask)) !=
         0;
#else
  int32_t all = 0;
  for (int i = 0; i < kLanes; ++i) all |= mask[i];
  return all != 0;
#endif
}

/// Which lanes of a vector are seen: a register of bits where there are such, else all bits of a
/// lane.
#if defined(__AVX512F__)
using Lanes = __mmask16;
FOVEA_INLINE Lanes lanes_of(Int mask) {
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask));
}
FOVEA_INLINE Lanes lanes_in_common(Int a, Int b) {
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b));
}
/// 0 <= x < limit.
FOVEA_INLINE Lanes lanes_below(Int x, int32_t limit) {
  return _mm512_cmplt_epu32_mask(reinterpret_cast<__m512i>(x), _mm512_set1_epi32(limit));
}
FOVEA_INLINE Float choose(Lanes seen, Float yes, Float no) {
  return _mm512_mask_blend_ps(seen, no, yes);
}
FOVEA_INLINE bool any(Lanes seen) { return seen != 0; }
#else
using Lanes = Int;
FOVEA_INLINE Lanes lanes_of(Int mask) { return mask; }
FOVEA_INLINE Lanes lanes_in_common(Int a, Int b) { return (a & b) != 0; }
FOVEA_INLINE Lanes lanes_below(Int x, int32_t limit) { return (x >= 0) & (x < limit); }
FOVEA_INLINE Float choose(Lanes seen, Float yes, Float no) { return seen ? yes : no; }
#endif

FOVEA_INLINE Float as_floats(Int x) { return __builtin_convertvector(x, Float); }

#if defined(__AVX512F__)
// 2^(x - floor(x)); scalef then multiplies by 2^floor(x).
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
#endif

/// 2^x, relative error 2e-7 (`degree` 5) or 8e-5 (3: enough where the result becomes bfloat16);
/// -inf gives 0, overflow +inf. Polynomials: least maximal relative error on [0, 1) and
/// [-1/2, 1/2], fitted for this file.
template <int degree>
FOVEA_INLINE Float exp2_lanes(Float x) {
#if defined(__AVX512F__)
  return _mm512_scalef_ps(exp2_of_fraction<degree>(x), x);
#else
  // 1.5 * 2^23 rounds to the nearest integer, which then stands in the lowest bits of the sum.
  constexpr float kRound = 12582912.0f;
  const Float low = broadcast(-127.0f), high = broadcast(128.0f);
  const Float limited = x < low ? low : (x > high ? high : x);
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
#endif
}

/// exp2_lanes() where `seen`, 0 elsewhere.
template <int degree>
FOVEA_INLINE Float exp2_seen(Lanes seen, Float x) {
#if defined(__AVX512F__)
  return _mm512_maskz_scalef_ps(seen, exp2_of_fraction<degree>(x), x);
#else
  return choose(seen, exp2_lanes<degree>(x), Float{});
#endif
}

/// log2(1 + m) for 1 + m between sqrt(1/2) and sqrt(2), absolute error 2e-7.
template <class Number>
FOVEA_INLINE Number log2_near_one(Number m) {
  Number p = 0.12583537f * m - 0.20726894f;
  p = p * m + 0.21571585f;
  p = p * m - 0.23894495f;
  p = p * m + 0.28791624f;
  p = p * m - 0.36070368f;
  p = p * m + 0.48091064f;
  p = p * m - 0.72134735f;
  p = p * m + 1.442695f;
  return p * m;
}

/// Whether whole vectors of numbers hold no NaN and no infinity, 0 times which is not 0.
FOVEA_INLINE bool finite_lanes(const float* p, int64_t n) {
  Float sums[4] = {};  // several, so that additions do not wait for each other
  int64_t at = 0;
  for (; at + 4 * kLanes <= n; at += 4 * kLanes) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sums[i] = load(p + at + i * kLanes) * 0.0f + sums[i];
  }
  for (; at < n; at += kLanes) sums[0] = load(p + at) * 0.0f + sums[0];
  const Float all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return !any(all != all);
}

/// Notes for the driver that some result is not finite; threads share the note.
FOVEA_INLINE void note_not_finite(bool* note) {
  if (note != nullptr) __atomic_store_n(note, true, __ATOMIC_RELAXED);
}

constexpr int32_t kSqrtHalfBits = 0x3F3504F3;

/// log2(x) of a positive finite number; scalar code for loops over rows.
FOVEA_INLINE float fast_log2(float x) {
  const int32_t bits = __builtin_bit_cast(int32_t, x);
  const int32_t exponent = (bits - kSqrtHalfBits) >> 23;
  const float m = __builtin_bit_cast(float, bits - (exponent << 23)) - 1.0f;
  return log2_near_one(m) + static_cast<float>(exponent);
}

FOVEA_INLINE Float log2_lanes(Float x) {
  const Int bits = reinterpret_cast<Int>(x), exponent = (bits - kSqrtHalfBits) >> 23;
  const Float m = reinterpret_cast<Float>(bits - (exponent << 23)) - 1.0f;
  return log2_near_one(m) + as_floats(exponent);
}

/// While it lives, this thread's denormal numbers are zero: some CPUs take hundreds of cycles for
/// one, and results must not depend on the machine.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040u); }
  ~FlushDenormals() { _mm_setcsr(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned saved_;
#endif
};

}  // namespace
}  // namespace fovea::kernels
