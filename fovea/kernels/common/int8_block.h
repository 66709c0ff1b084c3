// Activations rounded to 8 bits in blocks of 32, as ggml rounds them before products with packed
// weights: x = d q. The scale is d = max|x| / 127 in float32. The number q is x / d, rounded to the
// nearest, ties to even.
//
// Always inlined, as bfloat16.h.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/kernels/common/block_magnitude.h"

namespace fovea::kernels {

/// Blocks whose largest number is smaller are zeros: 127 / max|x| or d would leave the normal
/// numbers.
inline constexpr float kSmallestInt8Block = 0x1p-119F;

/// Rounds kBlock numbers; returns d. A block with infinity or NaN has d = NaN and q = 0, so that
/// every product with it is NaN.
FOVEA_INLINE float round_block(const float* x, int8_t* q) {
  const uint32_t bits = largest_magnitude(x);
  const float largest = __builtin_bit_cast(float, bits);
  const bool finite = bits < 0x7F800000;
  if (!finite || largest < kSmallestInt8Block) {
    for (int64_t i = 0; i < kBlock; ++i) q[i] = 0;
    return finite ? 0.0F : __builtin_nanf("");
  }
  const float inverse = 127.0F / largest;
#pragma omp simd
  for (int64_t i = 0; i < kBlock; ++i)
    q[i] = static_cast<int8_t>(static_cast<int32_t>(__builtin_rintf(x[i] * inverse)));
  return largest / 127.0F;
}

}  // namespace fovea::kernels
