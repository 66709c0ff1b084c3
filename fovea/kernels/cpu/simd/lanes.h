// Vectors of the kernels: one vocabulary for every instruction set, so that kernels are written
// once. An instruction set is a header lanes_<isa>.h; vectors.h has the types.
//
//   load, store, broadcast           kLanes numbers of 32 bits; load() also widens bfloat16
//   load_first(p, n)                 n numbers, zeros behind them; nothing else is read
//   row_part(n), load_row, load_row_floats          likewise, of a row with any n elements left
//   load_half, load_halves, load_first_halves       float16
//   load_int8(x), load_int4<zero, with_m>(x, n, d, m)   numbers of a packed block as floats:
//                                    d (q - zero) (+ m) of numbers n ... n + kLanes
//   load_bytes<is_signed>, load_first_bytes, load_eights(x, n): lane i is x[n + i / 8]
//   larger, smaller, largest, sum, sum_each (lane n: sum of rows[n]), sum_to_four, transpose,
//   inverse
//   Lanes: which lanes are seen      lanes_of, lanes_in_common, lanes_below (0 <= x < limit),
//                                    lanes_of_bits, choose, any
//   bits_of, bits_above, bits_from_two              bit n: lane n is so; byte n of 64 is 2 or more
//   list_common(x, bits, first, to)  first + n of those of 8 words that share a bit; their number
//   exp2_lanes<degree>, exp2_seen    2^x, relative error 2e-7 (5) or 8e-5 (3); -inf gives 0
//   dot_pairs, dot_fours             sum + products of whole numbers in each lane; kDotsFours
//   pair_products, halves_of, store_halves, weave_halves, neighbouring_halves: pairs of bfloat16 in
//                                    lanes (words.h), where FOVEA_PAIRS is defined
//   to_nearest, store_bytes          whole numbers, ties to even; 32 of them as bytes
//   keep_in_register                 GCC would read the memory again for every use
//
// kFused: a product and a sum are one instruction. kMaskedLoads: load_row() is one instruction.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__AVX512F__)
#include "fovea/kernels/cpu/simd/lanes_avx512.h"
#elif defined(__AVX2__)
#include "fovea/kernels/cpu/simd/lanes_avx2.h"
#elif defined(FOVEA_NEON)
#include "fovea/kernels/cpu/simd/lanes_neon.h"
#else
#include "fovea/kernels/cpu/simd/lanes_scalar.h"
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fovea::kernels {
namespace {

/// transpose() of whole numbers.
FOVEA_INLINE void transpose(Bits (&rows)[kLanes]) {
  Float floats[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) floats[i] = reinterpret_cast<Float>(rows[i]);
  transpose(floats);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) rows[i] = reinterpret_cast<Bits>(floats[i]);
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

// The thread's mode of computing with floats, and the bits of it that make denormals zero.
#if defined(__x86_64__)
constexpr uint64_t kDenormalsAreZero = 0x8040;
FOVEA_INLINE uint64_t float_mode() { return _mm_getcsr(); }
FOVEA_INLINE void set_float_mode(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
constexpr uint64_t kDenormalsAreZero = uint64_t{1} << 24;
FOVEA_INLINE uint64_t float_mode() {
  uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
FOVEA_INLINE void set_float_mode(uint64_t mode) { asm volatile("msr fpcr, %0" ::"r"(mode)); }
#else
constexpr uint64_t kDenormalsAreZero = 0;
FOVEA_INLINE uint64_t float_mode() { return 0; }
FOVEA_INLINE void set_float_mode(uint64_t) {}
#endif

/// While it lives, this thread's denormal numbers are zero: some CPUs take hundreds of cycles for
/// one, and results must not depend on the machine.
class FlushDenormals {
 public:
  FlushDenormals() : saved_(float_mode()) { set_float_mode(saved_ | kDenormalsAreZero); }
  ~FlushDenormals() { set_float_mode(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  uint64_t saved_;
};

}  // namespace
}  // namespace fovea::kernels
