// Products of bytes that are added in 16 bits, for weights of 4 bits on AVX2.
//
//   kAddsFoursInPairs                whether this instruction set has them
//   add_fours(sum, x, y)             sum + products of four bytes a lane, x unsigned and y signed,
//   the
//                                    same for all lanes; in two sums of 16 bits a lane
//   sum_of_pairs(sums)               the two sums of each lane together
//   kSumsOutputs                     whether there are the next three
//   nibbles(q)                       32 numbers of 4 bits in bytes, the low halves of 16 bytes
//   first products_in_pairs(x, y)          sums of two products of bytes, x unsigned and y signed
//   sums_of_outputs(parts)           the numbers of each of kLanes vectors together, in lane n
//   those
//                                    of vector n; eight numbers of 16 bits fit into one together
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

constexpr bool kSumsOutputs = true;
FOVEA_INLINE Bits nibbles(const uint8_t* q) {
  const __m256i twice =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
  const __m256i apart = _mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
  return reinterpret_cast<Bits>(_mm256_and_si256(apart, _mm256_set1_epi8(0x0F)));
}
FOVEA_INLINE Shorts products_in_pairs(Bits x, const void* y) {
  const __m256i bytes = _mm256_loadu_si256(static_cast<const __m256i*>(y));
  return reinterpret_cast<Shorts>(_mm256_maddubs_epi16(reinterpret_cast<__m256i>(x), bytes));
}
/// The low 32 bits of both 128-bit halves are sums of `a`, the next of `b` and so on.
FOVEA_INLINE Int sums_of_halves(Int a, Int b, Int c, Int d) {
  const auto pair = [](Int even, Int odd) {
    return reinterpret_cast<Int>(_mm256_hadd_epi32(whole(even), whole(odd)));
  };
  return pair(pair(a, b), pair(c, d));
}
FOVEA_INLINE Int sums_of_halves(Shorts a, Shorts b, Shorts c, Shorts d) {
  const auto pair = [](Shorts first, Shorts second) {
    return _mm256_add_epi16(_mm256_unpacklo_epi64(whole(first), whole(second)),
                            _mm256_unpackhi_epi64(whole(first), whole(second)));
  };
  const __m256 ab = _mm256_castsi256_ps(pair(a, b)), cd = _mm256_castsi256_ps(pair(c, d));
  const __m256i all = _mm256_add_epi16(_mm256_castps_si256(_mm256_shuffle_ps(ab, cd, 0x88)),
                                       _mm256_castps_si256(_mm256_shuffle_ps(ab, cd, 0xDD)));
  return sum_of_pairs(reinterpret_cast<Shorts>(all));
}
template <class Numbers>
FOVEA_INLINE Int sums_of_outputs(const Numbers (&parts)[kLanes]) {
  const __m256i low = whole(sums_of_halves(parts[0], parts[1], parts[2], parts[3])),
                high = whole(sums_of_halves(parts[4], parts[5], parts[6], parts[7]));
  return reinterpret_cast<Int>(_mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20),
                                                _mm256_permute2x128_si256(low, high, 0x31)));
}
#else  // functions that are never called
constexpr bool kAddsFoursInPairs = false, kSumsOutputs = false;
FOVEA_INLINE Shorts add_fours(Shorts sum, Bits, uint32_t) { return sum; }
FOVEA_INLINE Int sum_of_pairs(Shorts sums) { return reinterpret_cast<Int>(sums); }
FOVEA_INLINE Bits nibbles(const uint8_t*) { return Bits{}; }
FOVEA_INLINE Shorts products_in_pairs(Bits, const void*) { return Shorts{}; }
template <class Numbers>
FOVEA_INLINE Int sums_of_outputs(const Numbers (&)[kLanes]) {
  return Int{};
}
#endif

}  // namespace
}  // namespace fovea::kernels
