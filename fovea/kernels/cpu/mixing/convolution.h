// The key-query convolution on the CPU (kernels/common/convolution.h).
//
// Each row is read once and kept, padded, until the cq rows that need it are done. Stretches where
// all rows are 0 are skipped: the future of a causal map, or keys outside a window.
//
// Parallel over maps by OpenMP; a map is one thread's, so results have the same bits for any number
// of threads. The instruction set is chosen_isa().
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "fovea/kernels/common/convolution.h"

namespace fovea::kernels {

template <class T>
void run(const ConvolutionForward<T>& p);
template <class T>
void run(const ConvolutionInputGradient<T>& p);
template <class T>
void run(const ConvolutionKernelGradient<T>& p);

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

/// Pointers into the scratch memory of one thread.
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
