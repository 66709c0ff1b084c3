// The row loops of elementwise.h, written once and compiled once per instruction set
// (kernel_table.h).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/common/activation.h"
#include "fovea/kernels/common/vector_math.h"
#include "fovea/kernels/cpu/kernel_table.h"
#include "fovea/kernels/cpu/products/elementwise.h"

namespace fovea::kernels {
namespace {

template <class T>
void rms_norm_forward(const RmsNormForward<T>& p, int64_t begin, int64_t end) {
  const int64_t n = p.n;
  const float* __restrict w = p.w;
  for (int64_t r = begin; r < end; ++r) {
    const T* __restrict x = p.x + r * n;
    T* __restrict y = p.y + r * n;
    float squares = 0;
    if (p.delta != nullptr) {
      const T* __restrict delta = p.delta + r * n;
      T* __restrict sum = p.sum + r * n;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) from_float(to_float(x[i]) + to_float(delta[i]), sum[i]);
      x = sum;
    }
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < n; ++i) squares += to_float(x[i]) * to_float(x[i]);
    const float scale = 1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + p.eps);
    p.rstd[r] = scale;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) from_float(to_float(x[i]) * scale * w[i], y[i]);
  }
}

template <class T>
void rms_norm_backward(const RmsNormBackward<T>& p, int64_t begin, int64_t end, float* dw_sum) {
  const int64_t n = p.n;
  const float* __restrict w = p.w;
  float* __restrict dw = dw_sum;
  for (int64_t r = begin; r < end; ++r) {
    const T* __restrict dy = p.dy + r * n;
    const T* __restrict x = p.x + r * n;
    T* __restrict dx = p.dx + r * n;
    const float scale = p.rstd[r];
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < n; ++i) dot += to_float(dy[i]) * w[i] * to_float(x[i]);
    const float back = dot * scale * scale * scale / static_cast<float>(n);
    if (p.residual != nullptr) {
      const T* __restrict residual = p.residual + r * n;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        const float g = to_float(dy[i]), value = to_float(x[i]);
        dw[i] += g * value * scale;
        from_float(g * w[i] * scale - value * back + to_float(residual[i]), dx[i]);
      }
    } else {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        const float g = to_float(dy[i]), value = to_float(x[i]);
        dw[i] += g * value * scale;
        from_float(g * w[i] * scale - value * back, dx[i]);
      }
    }
  }
}

template <class T>
void swiglu_forward(const SwigluForward<T>& p, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* __restrict gate = p.gate_up + r * 2 * p.f;
    const T* __restrict up = gate + p.f;
    T* __restrict y = p.y + r * p.f;
#pragma omp simd
    for (int64_t i = 0; i < p.f; ++i) {
      const float g = to_float(gate[i]);
      from_float(activated<Activation::silu>(g) * to_float(up[i]), y[i]);
    }
  }
}

template <class T>
void swiglu_backward(const SwigluBackward<T>& p, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* __restrict gate = p.gate_up + r * 2 * p.f;
    const T* __restrict up = gate + p.f;
    const T* __restrict dy = p.dy + r * p.f;
    T* __restrict dgate = p.dgate_up + r * 2 * p.f;
    T* __restrict dup = dgate + p.f;
#pragma omp simd
    for (int64_t i = 0; i < p.f; ++i) {
      const float g = to_float(gate[i]), d = to_float(dy[i]);
      const float s = sigmoid(g);
      from_float(d * to_float(up[i]) * s * (1.0f + g * (1.0f - s)), dgate[i]);
      from_float(d * g * s, dup[i]);
    }
  }
}

template <class T>
T* head_at(T* base, const HeadPlaces& places, int64_t r, int64_t h) {
  return base + (r / places.t) * places.batch + (r % places.t) * places.row + h * places.head;
}

template <class T>
void rotate_forward(const HeadRotation<T>& p, int64_t begin, int64_t end) {
  const int64_t half = p.rotary / 2, d = p.d;
  for (int64_t r = begin; r < end; ++r) {
    const float* __restrict c = half > 0 ? p.cos + p.positions[r] * half : nullptr;
    const float* __restrict s = half > 0 ? p.sin + p.positions[r] * half : nullptr;
    for (int64_t h = 0; h < p.heads; ++h) {
      const T* __restrict in = head_at(p.in, p.in_places, r, h);
      T* __restrict out = head_at(p.out, p.out_places, r, h);
      if (p.gain == nullptr) {
#pragma omp simd
        for (int64_t i = 0; i < half; ++i) {
          const float a = to_float(in[i]), b = to_float(in[half + i]);
          from_float(a * c[i] - b * s[i], out[i]);
          from_float(a * s[i] + b * c[i], out[half + i]);
        }
        for (int64_t i = 2 * half; i < d; ++i) out[i] = in[i];
        continue;
      }
      const float* __restrict gain = p.gain;
      float squares = 0;
#pragma omp simd reduction(+ : squares)
      for (int64_t i = 0; i < d; ++i) squares += to_float(in[i]) * to_float(in[i]);
      const float scale = 1.0f / __builtin_sqrtf(squares / static_cast<float>(d) + p.eps);
      p.rstd[r * p.heads + h] = scale;
#pragma omp simd
      for (int64_t i = 0; i < half; ++i) {
        const float a = to_float(in[i]) * scale * gain[i],
                    b = to_float(in[half + i]) * scale * gain[half + i];
        from_float(a * c[i] - b * s[i], out[i]);
        from_float(a * s[i] + b * c[i], out[half + i]);
      }
      for (int64_t i = 2 * half; i < d; ++i) from_float(to_float(in[i]) * scale * gain[i], out[i]);
    }
  }
}

template <class T>
void rotate_backward(const HeadRotation<T>& p, int64_t begin, int64_t end, float* dgain_sum,
                     float* scratch) {
  const int64_t half = p.rotary / 2, d = p.d;
  float* __restrict g = scratch;
  float* __restrict dgain = dgain_sum;
  for (int64_t r = begin; r < end; ++r) {
    const float* __restrict c = half > 0 ? p.cos + p.positions[r] * half : nullptr;
    const float* __restrict s = half > 0 ? p.sin + p.positions[r] * half : nullptr;
    for (int64_t h = 0; h < p.heads; ++h) {
      const T* __restrict dout = head_at(p.dout, p.out_places, r, h);
      T* __restrict din = head_at(p.din, p.in_places, r, h);
#pragma omp simd
      for (int64_t i = 0; i < half; ++i) {
        const float a = to_float(dout[i]), b = to_float(dout[half + i]);
        g[i] = a * c[i] + b * s[i];
        g[half + i] = b * c[i] - a * s[i];
      }
      for (int64_t i = 2 * half; i < d; ++i) g[i] = to_float(dout[i]);
      if (p.gain == nullptr) {
#pragma omp simd
        for (int64_t i = 0; i < d; ++i) from_float(g[i], din[i]);
        continue;
      }
      const T* __restrict in = head_at(p.in, p.in_places, r, h);
      const float* __restrict gain = p.gain;
      const float scale = p.rstd[r * p.heads + h];
      float dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t i = 0; i < d; ++i) dot += g[i] * gain[i] * to_float(in[i]);
      const float back = dot * scale * scale * scale / static_cast<float>(d);
#pragma omp simd
      for (int64_t i = 0; i < d; ++i) {
        const float value = to_float(in[i]);
        dgain[i] += g[i] * value * scale;
        from_float(g[i] * gain[i] * scale - value * back, din[i]);
      }
    }
  }
}

template <class T>
void cross_entropy(const CrossEntropy<T>& p, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    T* __restrict x = p.logits + r * p.v;
    const int64_t target = p.targets[r];
    if (target < 0) {
      p.nll[r] = 0;
      if (p.lse != nullptr) p.lse[r] = 0;
      if (p.gradient) {
        for (int64_t i = 0; i < p.v; ++i) x[i] = T{};
      }
      continue;
    }
    float top = to_float(x[0]), sum = 0;
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < p.v; ++i) {
      const float value = to_float(x[i]);
      top = value > top ? value : top;
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < p.v; ++i) sum += fast_exp(to_float(x[i]) - top);
    const float lse = top + __builtin_logf(sum);
    const float nll = lse - to_float(x[target]);
    p.nll[r] = nll;
    if (p.lse != nullptr) p.lse[r] = lse;
    if (!p.gradient) continue;
    // d (lse + alpha lse^2) / ds = (1 + 2 alpha lse) softmax
    const float scale = p.scale, softmax_scale = scale * (1.0f + 2.0f * p.z_loss * lse);
#pragma omp simd
    for (int64_t i = 0; i < p.v; ++i)
      from_float(fast_exp(to_float(x[i]) - lse) * softmax_scale, x[i]);
    const float p_target = fast_exp(-nll);
    from_float((p_target - 1.0f) * scale + p_target * (softmax_scale - scale), x[target]);
  }
}

template <Isa isa, class T>
constexpr ElementwiseTable<T> table_of() {
  return {rms_norm_forward<T>, rms_norm_backward<T>, swiglu_forward<T>, swiglu_backward<T>,
          rotate_forward<T>,   rotate_backward<T>,   cross_entropy<T>};
}

}  // namespace
}  // namespace fovea::kernels
