// Products of bytes that are added in 16 bits, for weights of 4 bits on AVX2.
//
//   kAddsFoursInPairs                whether this instruction set has them
//   add_fours(sum, x, y)             sum + products of four bytes a lane, x unsigned and y signed,
//   the
//                                    same for all lanes; in two sums of 16 bits a lane
//   sum_of_pairs(sums)               the two sums of each lane together
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/simd/lanes.h"

namespace fovea::kernels {
namespace {

#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr bool kAddsFoursInPairs = true;
FOVEA_INLINE Shorts add_fours(Shorts sum, Bits x, uint32_t y) {
  const __m256i same = _mm256_set1_epi32(static_cast<int32_t>(y));
  return sum + reinterpret_cast<Shorts>(_mm256_maddubs_epi16(reinterpret_cast<__m256i>(x), same));
}
FOVEA_INLINE Int sum_of_pairs(Shorts sums) {
  return reinterpret_cast<Int>(_mm256_madd_epi16(whole(sums), _mm256_set1_epi16(1)));
}
#else
constexpr bool kAddsFoursInPairs = false;
FOVEA_INLINE Shorts add_fours(Shorts sum, Bits, uint32_t) { return sum; }  // never called
FOVEA_INLINE Int sum_of_pairs(Shorts sums) { return reinterpret_cast<Int>(sums); }
#endif

}  // namespace
}  // namespace fovea::kernels
