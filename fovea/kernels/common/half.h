// IEEE float16 as bits.
//
// Always inlined, as bfloat16.h.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/kernels/common/bfloat16.h"

namespace fovea {

/// Exact.
FOVEA_INLINE float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, rest = half & 0x7FFF;
  if (rest >= 0x7C00) return __builtin_bit_cast(float, sign | 0x7F800000 | (rest & 0x3FF) << 13);
  if (rest >= 0x400) return __builtin_bit_cast(float, sign | ((rest << 13) + ((127 - 15) << 23)));
  const float small = static_cast<float>(rest) * 0x1p-24F;  // subnormal
  return __builtin_bit_cast(float, sign | __builtin_bit_cast(uint32_t, small));
}

/// To the nearest, ties to even; from 65520 on infinity.
FOVEA_INLINE uint16_t float_to_half(float value) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7FFFFFFF;
  uint32_t magnitude = 0;
  if (rest > 0x7F800000) {
    magnitude = 0x7E00 | (rest >> 13 & 0x3FF);  // NaN
  } else if (rest >= 0x477FF000) {
    magnitude = 0x7C00;
  } else if (rest < 0x38800000) {  // below 2^-14: multiples of 2^-24, rounded by the addition
    const float shifted = __builtin_bit_cast(float, rest) + 0.5F;
    magnitude = __builtin_bit_cast(uint32_t, shifted) - __builtin_bit_cast(uint32_t, 0.5F);
  } else {
    const uint32_t rounded = rest + 0xFFF + (rest >> 13 & 1);
    magnitude = (rounded - ((127 - 15) << 23)) >> 13;
  }
  return static_cast<uint16_t>(sign | magnitude);
}

}  // namespace fovea
