// The largest number of a block, for the roundings of int8_block.h and int16_block.h.
//
// Always inlined, as bfloat16.h.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/kernels/common/weight_format.h"

namespace fovea::kernels {

/// The bits of the largest magnitude of kBlock numbers. As whole numbers magnitudes have their own
/// order, and NaN is the largest.
FOVEA_INLINE uint32_t largest_magnitude(const float* x) {
  uint32_t bits = 0;
#pragma omp simd reduction(max : bits)
  for (int64_t i = 0; i < kBlock; ++i) {
    const uint32_t one = __builtin_bit_cast(uint32_t, x[i]) & 0x7FFFFFFF;
    bits = one > bits ? one : bits;
  }
  return bits;
}

}  // namespace fovea::kernels
