// The kernels of one instruction set as decoder.cpp calls them: function pointers (internal to
// kernels/cpu).
//
// No inline functions and no containers here: sources compiled with wide instructions include it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/kernels/common/activation.h"
#include "fovea/kernels/common/bfloat16.h"

namespace fovea::kernels {

/// The row functions of one instruction set, one thread; n elements each.
template <class T>
struct DecoderTable {
  void (*widen)(const T* x, int64_t n, float* y);
  /// y = x + bias, both rounded first; bias may be null.
  void (*narrow)(const float* x, const float* bias, int64_t n, T* y);
  void (*add)(const T* a, const T* b, int64_t n, T* y);
  float (*dot)(const float* a, const float* b, int64_t n);
  /// LayerNorm; weight and bias may be null.
  void (*layer_norm)(const T* x, const float* weight, const float* bias, float eps, int64_t n,
                     T* y);
  void (*to_length)(const T* x, float length, int64_t n, T* y);
  /// y = a(x), times `factor` where that is not null.
  void (*activate)(Activation activation, const T* x, const T* factor, int64_t n, T* y);
};

}  // namespace fovea::kernels
