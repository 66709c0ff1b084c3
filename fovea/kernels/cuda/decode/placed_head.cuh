// Queries and keys of a token, normed and rotated (spec 6, 7.3), one warp a head.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cuda/decode/primitives.cuh"
#include "fovea/kernels/cuda/decode/problem.h"

namespace fovea::kernels::cuda {

/// cos and sin of the numbers lane, lane + 32, ... of a head.
template <int kWidth>
struct LaneRotation {
  static constexpr int kNumbers = kWidth / 32;
  float cos[kNumbers], sin[kNumbers];

  FOVEA_DEVICE LaneRotation(const DecodeAttentionParameters& p, const TokenNumbers& token) {
    const int half = p.rotary / 2;
#pragma unroll
    for (int n = 0; n < kNumbers; ++n) {
      const int i = threadIdx.x % 32 + 32 * n, at = i < half ? i : i - half;
      const bool rotated = i < 2 * half;
      cos[n] = rotated ? token.cos[token.position * half + at] : 1.0f;
      sin[n] = rotated ? token.sin[token.position * half + at] : 0.0f;
    }
  }
};

/// The queries or the keys of a token, one head after the other, and what norms them.
struct UnplacedHeads {
  const uint16_t* data;
  const float* gain;  ///< of a head, or of all where they are normed together
  int count;
  float length;  ///< of HeadNorm::length
};

/// A head of a token, normed and rotated: its numbers one by one. All lanes of a warp call it.
template <int kWidth>
class PlacedHead {
 public:
  FOVEA_DEVICE PlacedHead(const DecodeAttentionParameters& p, const LaneRotation<kWidth>& rotation,
                          const UnplacedHeads& heads, int head)
      : p_(p), rotation_(rotation), head_(heads.data + head * p.head_dim), gain_(heads.gain) {
    if (p.head_norm == HeadNorm::none) return;
    const bool together = p.head_norm == HeadNorm::all_rms;
    if (together) gain_ += head * p.head_dim;
    const uint16_t* const x = together ? heads.data : head_;
    const int count = together ? heads.count * p.head_dim : p.head_dim, lane = threadIdx.x % 32;
    float sum = 0.0f, squares = 0.0f;
    if (p.head_norm == HeadNorm::layer) {
      for (int i = lane; i < count; i += 32) sum += number(x[i]);
      mean_ = warp_sum(sum) / count;
    }
    for (int i = lane; i < count; i += 32) {
      const float centred = number(x[i]) - mean_;
      squares += centred * centred;
    }
    squares = warp_sum(squares);
    scale_ = p.head_norm == HeadNorm::length ? heads.length / exact_sqrt(max_of(squares, 1e-24f))
                                             : 1.0f / exact_sqrt(squares / count + p.eps);
  }

  /// Number lane + 32 n, rounded; 0 beyond the head.
  FOVEA_DEVICE float at(int n) const {
    const int half = p_.rotary / 2, i = threadIdx.x % 32 + 32 * n;
    if (i >= p_.head_dim) return 0.0f;
    if (i >= 2 * half) return rounded(normed(i));
    const bool low = i < half;
    const float a = normed(low ? i : i - half), b = normed(low ? half + i : i);
    return rounded(low ? a * rotation_.cos[n] - b * rotation_.sin[n]
                       : a * rotation_.sin[n] + b * rotation_.cos[n]);
  }

 private:
  FOVEA_DEVICE float normed(int i) const {
    const float x = number(head_[i]);
    switch (p_.head_norm) {
      case HeadNorm::rms:  // one operation with the rotation
        return x * scale_ * gain_[i];
      case HeadNorm::all_rms:
        return rounded(x * scale_ * gain_[i]);
      case HeadNorm::layer:
        return rounded(gain_ != nullptr ? (x - mean_) * scale_ * gain_[i] : (x - mean_) * scale_);
      case HeadNorm::length:
        return rounded(x * scale_);
      default:
        return x;
    }
  }

  const DecodeAttentionParameters& p_;
  const LaneRotation<kWidth>& rotation_;
  const uint16_t* const head_;
  const float* gain_;
  float mean_ = 0.0f, scale_ = 1.0f;
};

}  // namespace fovea::kernels::cuda
