// The key-query convolution of Multi-Token Attention (spec 3, M-1 ... M-11, Eq. 5): a small kernel
// per head that slides over the map of logits or weights.
//
//   y[m,i,j] = sum_{a < cq, c < ck} K[h,a,c] x[m, i - (cq-1-a), j + c - older],  older = (ck-1)/2
//
// A map m = (sequence, head h) has `rows` rows of `keys` numbers, y its last `results`. x counts as
// 0 outside, and in rows before the first one of the document of row i. T = float and T = double.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fovea::kernels {

/// Shapes of a convolution: everything is contiguous.
template <class T>
struct Convolution {
  int64_t maps = 0, heads = 0;  ///< map m has head m % heads
  int64_t rows = 0, results = 0, keys = 0;
  int64_t queries = 0, taps = 0;  ///< cq, ck
  const T* kernel = nullptr;      ///< [heads, cq, ck]
  /// Index of the first row of each row's document, [sequences, rows]; null = 0 everywhere. Map m
  /// has sequence m / heads, or 0 where there is only one.
  const int32_t* first_row = nullptr;
  int64_t sequences = 1;

  int64_t older() const { return (taps - 1) / 2; }
  /// Width of a row with its zeros on both sides: a whole stretch and all taps may be read past its
  /// last key.
  int64_t padded_width() const { return (keys + taps + 2 * kStretch) / kStretch * kStretch; }

  /// Numbers of a row that are worked on together: four vectors of the widest instruction set, so
  /// that additions of one need not wait for each other.
  static constexpr int64_t kStretch = 64;
  /// Taps whose sums the gradient of the kernel keeps in registers, and the lanes of each.
  static constexpr int64_t kTaps = 8, kLanes = 16;
};

/// y [maps, results, keys] of x [maps, rows, keys].
template <class T>
struct ConvolutionForward {
  Convolution<T> shape;
  const T* x = nullptr;
  T* y = nullptr;
};

/// dx [maps, rows, keys] of dy [maps, results, keys].
template <class T>
struct ConvolutionInputGradient {
  Convolution<T> shape;
  const T* dy = nullptr;
  T* dx = nullptr;
};

/// dkernel [maps, cq, ck], a map each: the caller adds those of a head.
template <class T>
struct ConvolutionKernelGradient {
  Convolution<T> shape;
  const T *x = nullptr, *dy = nullptr;
  T* dkernel = nullptr;
};

}  // namespace fovea::kernels
