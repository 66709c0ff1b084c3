// The activations of the feed-forward (spec 7.4), one number at a time.
//
// Always inlined: sources compiled for wide instruction sets include it, and their compilers
// vectorise it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/kernels/common/vector_math.h"

namespace fovea::kernels {

/// a(x); with a gate matrix a(gate) * up.
enum class Activation : uint8_t { relu, relu_squared, gelu, gelu_tanh, silu, elu, sigmoid };

FOVEA_INLINE float sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

template <Activation a>
FOVEA_INLINE float activated(float x) {
  if constexpr (a == Activation::relu) {
    return x > 0.0f ? x : 0.0f;
  } else if constexpr (a == Activation::relu_squared) {
    return x > 0.0f ? x * x : 0.0f;
  } else if constexpr (a == Activation::gelu) {
    return 0.5f * x * (1.0f + __builtin_erff(x * 0.70710678f));
  } else if constexpr (a == Activation::gelu_tanh) {  // (1 + tanh u) / 2 = sigmoid(2 u)
    return x * sigmoid(1.59576912f * (x + 0.044715f * x * x * x));
  } else if constexpr (a == Activation::silu) {
    return x / (1.0f + fast_exp(-x));
  } else if constexpr (a == Activation::elu) {
    return x > 0.0f ? x : fast_exp(x) - 1.0f;
  } else {
    return sigmoid(x);
  }
}

/// Calls f with the activation as a compile-time constant: f.template operator()<a>().
template <class F>
FOVEA_INLINE void with_activation(Activation a, const F& f) {
  switch (a) {
    case Activation::relu:
      return f.template operator()<Activation::relu>();
    case Activation::relu_squared:
      return f.template operator()<Activation::relu_squared>();
    case Activation::gelu:
      return f.template operator()<Activation::gelu>();
    case Activation::gelu_tanh:
      return f.template operator()<Activation::gelu_tanh>();
    case Activation::silu:
      return f.template operator()<Activation::silu>();
    case Activation::elu:
      return f.template operator()<Activation::elu>();
    case Activation::sigmoid:
      return f.template operator()<Activation::sigmoid>();
  }
}

}  // namespace fovea::kernels
