// lanes.h for NEON (AArch64): four lanes, 32 registers.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arm_neon.h>

#include "fovea/kernels/cpu/simd/vectors.h"

namespace fovea::kernels {
namespace {

constexpr bool kFused = true;
#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr bool kDotsFours = true;
#else
constexpr bool kDotsFours = false;
#endif

FOVEA_INLINE Float broadcast(float x) { return vdupq_n_f32(x); }
// As the other instruction sets: b where one of them is no number.
FOVEA_INLINE Float larger(Float a, Float b) { return a > b ? a : b; }
FOVEA_INLINE Float smaller(Float a, Float b) { return a < b ? a : b; }

FOVEA_INLINE Float sum_each(const Float (&rows)[kLanes]) {
  return vpaddq_f32(vpaddq_f32(rows[0], rows[1]), vpaddq_f32(rows[2], rows[3]));
}
FOVEA_INLINE Four sum_to_four(Float x) { return x; }
FOVEA_INLINE void keep_in_register(Float& x) { asm("" : "+w"(x)); }

FOVEA_INLINE void transpose(Float (&r)[kLanes]) {
  const auto pairs = [](float32x4_t x) FOVEA_ALWAYS { return vreinterpretq_f64_f32(x); };
  const float64x2_t even_low = pairs(vtrn1q_f32(r[0], r[1])),
                    odd_low = pairs(vtrn2q_f32(r[0], r[1])),
                    even_high = pairs(vtrn1q_f32(r[2], r[3])),
                    odd_high = pairs(vtrn2q_f32(r[2], r[3]));
  r[0] = vreinterpretq_f32_f64(vtrn1q_f64(even_low, even_high));
  r[1] = vreinterpretq_f32_f64(vtrn1q_f64(odd_low, odd_high));
  r[2] = vreinterpretq_f32_f64(vtrn2q_f64(even_low, even_high));
  r[3] = vreinterpretq_f32_f64(vtrn2q_f64(odd_low, odd_high));
}

FOVEA_INLINE uint64_t bits_of(Int seen) {
  const Bits bit{1, 2, 4, 8};
  return vaddvq_u32(reinterpret_cast<Bits>(seen) & bit);
}
FOVEA_INLINE uint32_t bits_above(const float* x, float bound) {
  return static_cast<uint32_t>(bits_of(load(x) > broadcast(bound)));
}
FOVEA_INLINE uint64_t bits_from_two(const uint8_t* x) {
  const uint8x16_t bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  uint64_t bits = 0;
  for (int64_t n = 0; n < 64; n += 16) {
    const uint8x16_t enough = vandq_u8(vcgeq_u8(vld1q_u8(x + n), vdupq_n_u8(2)), bit);
    bits |= uint64_t{vaddv_u8(vget_low_u8(enough))} << n;
    bits |= uint64_t{vaddv_u8(vget_high_u8(enough))} << (n + 8);
  }
  return bits;
}

// Numbers of other widths.

FOVEA_INLINE Float load(const BFloat16* x) {
  uint16x4_t halves;
  __builtin_memcpy(&halves, x, sizeof(halves));
  return vreinterpretq_f32_u32(vshll_n_u16(halves, 16));
}
FOVEA_INLINE Float load_halves(const uint16_t* x) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x)));
}
FOVEA_INLINE float load_half(uint16_t x) {
  return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(x))), 0);
}
FOVEA_INLINE Float load_first_bytes(const uint8_t* x, int64_t) {
  return vreinterpretq_f32_u8(vld1q_u8(x));
}
template <bool is_signed>
FOVEA_INLINE Shorts load_bytes(const uint8_t* x) {
  const uint8x8_t bytes = vld1_u8(x);
  return is_signed ? vmovl_s8(vreinterpret_s8_u8(bytes)) : vreinterpretq_s16_u16(vmovl_u8(bytes));
}
/// Four bytes, in the lowest lanes.
FOVEA_INLINE uint8x8_t four_bytes(const uint8_t* x) {
  uint32_t bytes;
  __builtin_memcpy(&bytes, x, sizeof(bytes));
  return vreinterpret_u8_u32(vdup_n_u32(bytes));
}
FOVEA_INLINE Float load_int8(const uint8_t* x) {
  const int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(four_bytes(x)));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}
template <int zero, bool with_m>
FOVEA_INLINE Float load_int4(const uint8_t* x, int64_t n, float d, float m) {
  const uint8x8_t both = four_bytes(x + n % 16);
  const uint8x8_t bits = n >= 16 ? vshr_n_u8(both, 4) : vand_u8(both, vdup_n_u8(15));
  const Int whole = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bits))));
  const Float y = as_floats(whole - zero) * d;
  return with_m ? y + m : y;
}

FOVEA_INLINE Int dot_pairs(Int sum, Shorts x, Shorts y) {
  const int16x8_t a = x, b = y;
  return vaddq_s32(sum,
                   vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b)));
}
#if defined(__ARM_FEATURE_MATMUL_INT8)
FOVEA_INLINE Int dot_fours(Int sum, Bits x, uint32_t y) {
  return vusdotq_s32(sum, vreinterpretq_u8_u32(x), vreinterpretq_s8_u32(vdupq_n_u32(y)));
}
#else
FOVEA_INLINE Int dot_fours(Int sum, Bits, uint32_t) { return sum; }  // never called
#endif

FOVEA_INLINE Int to_nearest(Float x) { return vcvtnq_s32_f32(x); }
FOVEA_INLINE void store_bytes(const Int (&x)[8], int8_t* to) {
#pragma GCC unroll 2
  for (int n = 0; n < 8; n += 4) {
    const int16x8_t low = vcombine_s16(vmovn_s32(x[n]), vmovn_s32(x[n + 1])),
                    high = vcombine_s16(vmovn_s32(x[n + 2]), vmovn_s32(x[n + 3]));
    vst1q_s8(to + 4 * n, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
  }
}

// Pairs of bfloat16 (words.h).

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define FOVEA_PAIRS
FOVEA_INLINE Float pair_products(Float a, Float b, Float sums) {
  return vbfdotq_f32(sums, vreinterpretq_bf16_f32(a), vreinterpretq_bf16_f32(b));
}
FOVEA_INLINE Float halves_of(Float low, Float high) {
  return vreinterpretq_f32_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high));
}
FOVEA_INLINE void store_halves(float* p, Float x) {
  const bfloat16x4_t halves = vcvt_bf16_f32(x);
  __builtin_memcpy(p, &halves, sizeof(halves));
}
FOVEA_INLINE void weave_halves(Float even, Float odd, Float& low, Float& high) {
  const uint16x8_t a = vreinterpretq_u16_f32(even), b = vreinterpretq_u16_f32(odd);
  low = vreinterpretq_f32_u16(vzip1q_u16(a, b));
  high = vreinterpretq_f32_u16(vzip2q_u16(a, b));
}
FOVEA_INLINE Float neighbouring_halves(const uint16_t* p) {
  const uint16x4_t a = vld1_u16(p), b = vld1_u16(p + 1);
  return vreinterpretq_f32_u16(vcombine_u16(vzip1_u16(a, b), vzip2_u16(a, b)));
}
#endif

}  // namespace
}  // namespace fovea::kernels

#include "fovea/kernels/cpu/simd/lanes_portable.h"
