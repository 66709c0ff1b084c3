// Activations rounded to 16 bits in blocks of 32, before products with packed weights: x = d q. The
// scale d is a power of two: 2^15 d is the smallest one above max|x|. The number q is x / d,
// rounded to the nearest, ties to even.
//
// A bfloat16 number of at least 2^-8 of the block's largest is therefore kept as it is. The error
// of the others is at most d / 2.
//
// Always inlined, as bfloat16.h.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/kernels/common/block_magnitude.h"

namespace fovea::kernels {

/// Rounds kBlock numbers; returns d. A block with infinity or NaN has d = NaN and q = 0, so that
/// every product with it is NaN; one whose numbers are all below 2^-112 is zeros.
FOVEA_INLINE float round_block(const float* x, int16_t* q) {
  const uint32_t bits = largest_magnitude(x);
  // largest < 2^(exponent - 126); d and 1 / d are normal numbers from exponent 15 on.
  const uint32_t exponent = bits >> 23;
  if (exponent == 255 || exponent < 15) {
    for (int64_t i = 0; i < kBlock; ++i) q[i] = 0;
    return exponent == 255 ? __builtin_nanf("") : 0.0F;
  }
  const float inverse = __builtin_bit_cast(float, (268 - exponent) << 23);
#pragma omp simd
  for (int64_t i = 0; i < kBlock; ++i) {
    const auto whole = static_cast<int32_t>(__builtin_rintf(x[i] * inverse));
    q[i] = static_cast<int16_t>(whole > 32767 ? 32767 : whole < -32767 ? -32767 : whole);
  }
  return __builtin_bit_cast(float, (exponent - 14) << 23);
}

}  // namespace fovea::kernels
