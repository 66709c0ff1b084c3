// exp() that compilers vectorise: range reduction and a polynomial, branch-free.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/common/bfloat16.h"

namespace fovea::kernels {

/// e^x with relative error below 2e-7; exactly 0 below -104 (so -inf gives 0), +inf above 88.73.
FOVEA_INLINE float fast_exp(float x) {
  const float limited = x < -104.0f ? -104.0f : (x > 89.0f ? 89.0f : x);
  const float shifted =
      limited * 1.44269504f + 12582912.0f;  // 1.5 * 2^23 rounds to the nearest integer
  const float n = shifted - 12582912.0f;
  // ln 2 in two parts, so that the product with n is exact in the first.
  const float r = (limited - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;  // minimax polynomial of degree 7 on [-ln2/2, ln2/2]
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // 2^n as two factors: n reaches -150, beyond one float's exponent.
  const int32_t whole = static_cast<int32_t>(n), first = whole / 2;
  const float a = __builtin_bit_cast(float, static_cast<uint32_t>(first + 127) << 23);
  const float b = __builtin_bit_cast(float, static_cast<uint32_t>(whole - first + 127) << 23);
  const float value = p * a * b;
  return x < -104.0f ? 0.0f : (x > 88.73f ? __builtin_inff() : value);
}

}  // namespace fovea::kernels
