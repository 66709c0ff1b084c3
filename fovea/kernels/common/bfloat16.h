// bfloat16 as bits: conversions that compilers turn into vector code.
//
// Always inlined, so that a copy compiled for a wide instruction set can never be linked into a
// narrow caller.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#define FOVEA_INLINE inline __attribute__((always_inline))
#define FOVEA_ALWAYS __attribute__((always_inline))  // of a lambda

namespace fovea {

/// Storage of a bfloat16 number (the upper half of a float32).
struct BFloat16 {
  uint16_t bits;
};

FOVEA_INLINE float to_float(BFloat16 x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16);
}
FOVEA_INLINE float to_float(float x) { return x; }

/// Rounds to nearest even; NaN stays NaN.
FOVEA_INLINE void from_float(float x, BFloat16& out) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  out.bits = static_cast<uint16_t>(x != x ? 0x7FC0u : rounded);
}
FOVEA_INLINE void from_float(float x, float& out) { out = x; }

}  // namespace fovea
