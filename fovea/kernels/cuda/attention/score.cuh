// Score policies: how a raw product q.k becomes a logit, and the way back.
//
// Score<Scale, Cap, Bias, chunks of a soft gate (gate.cuh)>. A gate has no cap beside it. Logits
// are kept in base 2 (times log2 e), so that exp2 needs no further multiplication. Without cap and
// bias the raw product stays in the registers and `factor` is applied inside the exponent.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cuda/attention/problem.h"
#include "fovea/kernels/cuda/device.cuh"

namespace fovea::kernels::cuda {

struct ConstantScale {
  static constexpr bool kPerRow = false;
  FOVEA_DEVICE static float of(const Problem& p, int, int, int) { return p.scale; }
};

// Learned temperature (Focal Attention): scale_i = 1 / tau_i; constant where there is none.
struct RowTemperature {
  static constexpr bool kPerRow = true;
  FOVEA_DEVICE static float of(const Problem& p, int b, int, int i) {
    if (p.temperature == nullptr) return p.scale;
    if (i >= p.queries) return 1.0f;
    return 1.0f / load_read_only(p.temperature + int64_t(b) * p.queries + i);
  }
};

struct NoCap {
  static constexpr bool kOn = false, kMaybe = false;
};
struct SoftCap {
  static constexpr bool kOn = true, kMaybe = false;
};
// A cap of 0 is none.
struct MaybeSoftCap {
  static constexpr bool kOn = true, kMaybe = true;
};
struct NoBias {
  static constexpr bool kOn = false;
};
// Without slopes all are 0.
struct Alibi {
  static constexpr bool kOn = true;
};

// tanh(x) = x * polynomial(x^2) for |x| <= 1, relative error below 7e-6.
FOVEA_DEVICE float tanh_coefficient(int n) {
  constexpr float c[5] = {0.999993089f, -0.332980653f, 0.130368113f, -0.0448175552f,
                          0.00903642452f};
  return c[n];
}
FOVEA_DEVICE float tanh_small(float x) {
  const float u = x * x;
  float y = tanh_coefficient(4);
#pragma unroll
  for (int n = 3; n >= 0; --n) y = y * u + tanh_coefficient(n);
  return x * y;
}

template <class ScalePolicy, class CapPolicy = NoCap, class BiasPolicy = NoBias, int kChunks = 0>
struct Score {
  static constexpr int kGateChunks = kChunks;
  static constexpr bool kGated = kChunks > 0;
  static_assert(!kGated || !CapPolicy::kOn);
  static constexpr bool kPerRow = ScalePolicy::kPerRow;
  static constexpr bool kCap = CapPolicy::kOn;
  static constexpr bool kBias = BiasPolicy::kOn;
  static constexpr bool kTransforms = kCap || kBias;

  struct Head {
    float cap2 = 0, inverse_cap = 0, slope2 = 0;
  };
  FOVEA_DEVICE static Head head(const Problem& p, int h) {
    Head r;
    if constexpr (kCap) {
      r.cap2 = p.softcap * kLog2e;
      r.inverse_cap = CapPolicy::kMaybe && p.softcap == 0.0f ? 0.0f : 1.0f / p.softcap;
    }
    if constexpr (kBias)
      r.slope2 = p.slopes == nullptr ? 0.0f : load_read_only(p.slopes + h) * kLog2e;
    return r;
  }

  // Scale of query row i, natural units.
  FOVEA_DEVICE static float scale(const Problem& p, int b, int h, int i) {
    return ScalePolicy::of(p, b, h, i);
  }

  // raw product -> base-2 logit. `distance` = position of the query - position of the key. With
  // kSmall, |scale * raw| <= cap: then a polynomial replaces the exponential and the division.
  template <bool kSmall = false>
  FOVEA_DEVICE static float logit(const Head& head, float raw, float scale, int distance) {
    float x;
    if (kCap && (!CapPolicy::kMaybe || head.inverse_cap > 0.0f)) {
      const float y = raw * (scale * head.inverse_cap);
      x = head.cap2 * (kSmall ? tanh_small(y) : tanh_exact(y));
    } else {
      x = raw * (scale * kLog2e);
    }
    if constexpr (kBias) x -= head.slope2 * static_cast<float>(distance);
    return x;
  }

  // Base-2 logit without its bias.
  FOVEA_DEVICE static float unbiased(const Head& head, float logit2, int distance) {
    if constexpr (!kBias) return logit2;
    return logit2 + head.slope2 * static_cast<float>(distance);
  }

  // d logit / d (scale * raw) in natural units, from the base-2 logit.
  FOVEA_DEVICE static float gain(const Head& head, float logit2, int distance) {
    if constexpr (!kCap) return 1.0f;
    if constexpr (kBias) logit2 += head.slope2 * static_cast<float>(distance);
    const float t = max_of(logit2 * (head.inverse_cap * kLn2), -1.0f);
    return 1.0f - t * t;
  }

  // What the gradient of a row's temperature sums times d(scale * raw): scale * raw in natural
  // units, back from log2 of the weight. Without a cap it is less the row's lse: finish_temperature
  // adds that. At the cap, where no gradient comes back, it is finite.
  FOVEA_DEVICE static float scaled(const Head& head, float log2_weight, float lse2, int distance) {
    float x2 = log2_weight;
    if constexpr (kBias) x2 += head.slope2 * static_cast<float>(distance);
    if (!kCap || (CapPolicy::kMaybe && head.inverse_cap == 0.0f)) return x2 * kLn2;
    constexpr float kMost = 0.9999999f;
    const float t = min_of(max_of((x2 + lse2) * (head.inverse_cap * kLn2), -kMost), kMost);
    return head.cap2 * (0.5f * kLn2 * kLn2) * log2_fast((1.0f + t) / (1.0f - t));
  }
};

}  // namespace fovea::kernels::cuda
