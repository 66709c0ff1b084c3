// The key-query convolution of Multi-Token Attention (spec 3, M-1 ... M-11, Eq. 5): a small kernel
// per head that slides over the map of logits or weights.
//
//   y[m,i,j] = sum_{a < cq, c < ck} K[h,a,c] x[m, i - (cq-1-a), j + c - older],  older = (ck-1)/2
//
// A map m = (sequence, head h) has `rows` rows of `keys` numbers, y its last `results`. x counts as
// 0 outside, and in rows before the first one of the document of row i. Each row is read once and
// kept, padded, until the cq rows that need it are done; stretches where all rows are 0 (the future
// of a causal map, what a window hides) are skipped.
//
// Parallel over maps by OpenMP; a map is one thread's, so results have the same bits for any number
// of threads. The instruction set is chosen_isa(). T = float and T = double.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

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
  /// Of a row between zeros: a whole stretch and all taps may be read past its last key.
  int64_t padded_width() const { return (keys + taps + 2 * kStretch) / kStretch * kStretch; }

  /// Numbers of a row that are worked on together: four vectors of the widest instruction set, so
  /// that additions of one need not wait for each other.
  static constexpr int64_t kStretch = 64;
  /// Taps whose sums the gradient of the kernel keeps in registers, and the lanes of each.
  static constexpr int64_t kTaps = 8, kLanes = 16;
};

/// y [maps, results, keys] of x [maps, rows, keys].
template <class T>
void convolve(const Convolution<T>& c, const T* x, T* y);

/// dx [maps, rows, keys] of dy [maps, results, keys].
template <class T>
void convolve_input_gradient(const Convolution<T>& c, const T* dy, T* dx);

/// dkernel [maps, cq, ck], a map each: the caller adds those of a head.
template <class T>
void convolve_kernel_gradient(const Convolution<T>& c, const T* x, const T* dy, T* dkernel);

/// Keys [begin, end) of a row outside of which all is 0.
struct KeyExtent {
  int64_t begin = 0, end = 0;
};

/// A padded row and the row of the kernel that slides over it.
template <class T>
struct RowAndTaps {
  const T* row = nullptr;
  const T* taps = nullptr;
  KeyExtent extent;
};

/// What one thread works in.
template <class T>
struct ConvolutionScratch {
  T* rows = nullptr;               ///< [cq + 1, padded_width()]
  T* reversed = nullptr;           ///< [cq, ck]
  T* sums = nullptr;               ///< [cq, ck rounded up to 8, 16]
  double* totals = nullptr;        ///< [cq, ck]
  RowAndTaps<T>* pairs = nullptr;  ///< [cq]
  KeyExtent* extents = nullptr;    ///< [cq]
};

/// The memory of one thread.
template <class T>
class ConvolutionWorkspace {
 public:
  explicit ConvolutionWorkspace(const Convolution<T>& c);
  const ConvolutionScratch<T>& scratch() const { return scratch_; }

 private:
  std::vector<T> numbers_;
  std::vector<double> totals_;
  std::vector<RowAndTaps<T>> pairs_;
  std::vector<KeyExtent> extents_;
  ConvolutionScratch<T> scratch_;
};

/// The functions of one instruction set: one map, one thread.
template <class T>
struct ConvolutionTable {
  using Scratch = ConvolutionScratch<T>;
  void (*forward)(const Convolution<T>&, int64_t map, const T* x, T* y, const Scratch&);
  void (*input_gradient)(const Convolution<T>&, int64_t map, const T* dy, T* dx, const Scratch&);
  void (*kernel_gradient)(const Convolution<T>&, int64_t map, const T* x, const T* dy, T* dkernel,
                          const Scratch&);
};

}  // namespace fovea::kernels
