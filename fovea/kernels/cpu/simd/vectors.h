// Vectors as wide as the instruction set has them: GCC's vector extension gives arithmetic,
// comparison and selection. Functions that need an instruction of their own are in lanes_<isa>.h.
//
// Everything here and in lanes.h has internal linkage (kernel_table.h says why).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/kernels/common/bfloat16.h"
#include "fovea/kernels/common/half.h"

namespace fovea::kernels {
namespace {

// Numbers of 32 bits in a vector, and vectors in the registers.
#if defined(__AVX512F__)
constexpr int kLanes = 16, kRegisters = 32;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kRegisters = 16;
#elif defined(FOVEA_NEON)
constexpr int kLanes = 4, kRegisters = 32;
#else
constexpr int kLanes = 4, kRegisters = 16;
#endif

typedef float Float __attribute__((vector_size(4 * kLanes), may_alias));
typedef int32_t Int __attribute__((vector_size(4 * kLanes), may_alias));
typedef uint32_t Bits __attribute__((vector_size(4 * kLanes), may_alias));
typedef int16_t Shorts __attribute__((vector_size(4 * kLanes), may_alias));
/// The same at any address.
typedef float FloatAt __attribute__((vector_size(4 * kLanes), may_alias, aligned(4)));
typedef int32_t IntAt __attribute__((vector_size(4 * kLanes), may_alias, aligned(4)));
typedef float Four __attribute__((vector_size(16)));

constexpr float kInfinity = __builtin_inff();
constexpr float kLog2E = 1.44269504f, kLn2 = 0.69314718f;

FOVEA_INLINE Float load(const float* p) { return *reinterpret_cast<const FloatAt*>(p); }
FOVEA_INLINE Int load(const int32_t* p) { return *reinterpret_cast<const IntAt*>(p); }
FOVEA_INLINE Shorts load(const int16_t* p) {
  Shorts x;
  __builtin_memcpy(&x, p, sizeof(x));
  return x;
}
FOVEA_INLINE void store(float* p, Float x) { *reinterpret_cast<FloatAt*>(p) = x; }
FOVEA_INLINE void store(int32_t* p, Int x) { *reinterpret_cast<IntAt*>(p) = x; }
FOVEA_INLINE Int broadcast(int32_t x) { return x - Int{}; }

/// The sum of all lanes, always in the same order.
FOVEA_INLINE float sum(Float x) {
  float part[kLanes];
  store(part, x);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) part[i] += part[i + width];
  }
  return part[0];
}

FOVEA_INLINE Float as_floats(Int x) { return __builtin_convertvector(x, Float); }

}  // namespace
}  // namespace fovea::kernels
