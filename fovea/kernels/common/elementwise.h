// Row-wise operations around attention, fused so that each reads and writes its tensors once:
// RMSNorm (with the residual add), SwiGLU, per-head norm with RoPE, softmax cross-entropy. Forward
// and backward; float32 and bfloat16 storage, float32 arithmetic.
//
// Tensors are row-major and contiguous unless strides are given.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fovea::kernels {

/// y = x / rms(x) * w (spec 0.1, 7.1); rstd[row] is kept for the backward pass. With `delta`, x +
/// delta is normalised and stored in `sum`.
template <class T>
struct RmsNormForward {
  const T* x = nullptr;
  const T* delta = nullptr;  // or null
  const float* w = nullptr;
  T* sum = nullptr;  // with delta
  T* y = nullptr;
  float* rstd = nullptr;
  int64_t rows = 0, n = 0;
  float eps = 0;
};

/// dx = gradient through the norm + `residual`; dw [n] is overwritten. x is what was normalised.
template <class T>
struct RmsNormBackward {
  const T* dy = nullptr;
  const T* x = nullptr;
  const float* w = nullptr;
  const float* rstd = nullptr;
  const T* residual = nullptr;  // or null
  T* dx = nullptr;
  float* dw = nullptr;
  int64_t rows = 0, n = 0;
};

/// y [rows, f] = silu(gate) * up, with gate_up [rows, 2f] = gate ++ up (spec 7.4, L-1).
template <class T>
struct SwigluForward {
  const T* gate_up = nullptr;
  T* y = nullptr;
  int64_t rows = 0, f = 0;
};

template <class T>
struct SwigluBackward {
  const T* dy = nullptr;
  const T* gate_up = nullptr;
  T* dgate_up = nullptr;
  int64_t rows = 0, f = 0;
};

/// Where the heads of a projection lie: head h of token r at base + (r / t) * batch + (r % t) * row
/// + h * head (elements).
struct HeadPlaces {
  int64_t t = 1, batch = 0, row = 0, head = 0;
};

/// Optional RMSNorm per head (gain [d] shared by heads, 7.3) and rotation by position (6.1,
/// half-split). `rotary` of the d components turn. Forward where `out` is given, else backward.
template <class T>
struct HeadRotation {
  const T* in = nullptr;    // forward input
  T* out = nullptr;         // forward output
  const T* dout = nullptr;  // backward input
  T* din = nullptr;         // backward output, at `in_places`
  HeadPlaces in_places, out_places;
  const float* gain = nullptr;  // null = no norm
  float* dgain = nullptr;       // [d], overwritten, with gain
  float* rstd = nullptr;        // [rows, heads], with gain: written forward, read backward
  const float* cos = nullptr;   // [*, rotary / 2], indexed by positions[row]
  const float* sin = nullptr;
  const int64_t* positions = nullptr;
  int64_t rows = 0, heads = 0, d = 0, rotary = 0;
  float eps = 0;
};

/// Cross-entropy of logits [rows, v] with targets (< 0 = none): nll[row] is written (0 without a
/// target). With `gradient`, logits become (softmax - onehot) * scale (0 without a target).
template <class T>
struct CrossEntropy {
  T* logits = nullptr;
  const int64_t* targets = nullptr;
  float* nll = nullptr;
  float* lse = nullptr;  // ln Z of each row (0 where there is no target), or absent
  int64_t rows = 0, v = 0;
  bool gradient = false;
  float scale = 1;
  float z_loss = 0;  // alpha of alpha (ln Z)^2, in the gradient alone
};

}  // namespace fovea::kernels
