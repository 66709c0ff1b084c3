// Formulas of one token: the bounds of tau, the groups of Focus. The fused kernels compute with
// them; layers have tensor operations, which tests/nn/scalar_formulas_test.cpp holds equal to them.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace fovea::kernels {

/// The bounds of a learned tau (F-3): `sigmoid` maps into them smoothly, else values are clipped.
struct TemperatureBounds {
  double low = 0.0, high = 0.0;
  bool sigmoid = false;
};

inline double bounded_temperature(float raw, const TemperatureBounds& bounds) {
  return bounds.sigmoid ? bounds.low + (bounds.high - bounds.low) / (1.0 + std::exp(-raw))
                        : std::clamp<double>(raw, bounds.low, bounds.high);
}

/// The groups with the `top_k` largest scores as bits; equal scores go to the lower index (U-14).
/// At most 64 groups; the scores taken become -inf.
inline uint64_t top_groups(std::span<float> scores, int64_t top_k) {
  uint64_t members = 0;
  for (int64_t n = 0; n < top_k; ++n) {
    const auto best = std::max_element(scores.begin(), scores.end());
    members |= uint64_t{1} << (best - scores.begin());
    *best = -std::numeric_limits<float>::infinity();
  }
  return members;
}

/// Scores to weights whose sum is 1.
inline void softmax(std::span<float> scores) {
  const float top = *std::max_element(scores.begin(), scores.end());
  float total = 0.0f;
  for (float& x : scores) total += x = std::exp(x - top);
  for (float& x : scores) x /= total;
}

}  // namespace fovea::kernels
