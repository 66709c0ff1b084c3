// Operations on rows of tensors on the CPU (kernels/common/elementwise.h).
//
// Parallel over rows by OpenMP; sums over rows are taken over fixed blocks, so results have the
// same bits for any number of threads. Functions exist for T = float and T = BFloat16; the
// instruction set is chosen_isa().
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/common/bfloat16.h"
#include "fovea/kernels/common/elementwise.h"

namespace fovea::kernels {

template <class T>
void run(const RmsNormForward<T>& p);
template <class T>
void run(const RmsNormBackward<T>& p);
template <class T>
void run(const SwigluForward<T>& p);
template <class T>
void run(const SwigluBackward<T>& p);
template <class T>
void run(const HeadRotation<T>& p);
template <class T>
void run(const CrossEntropy<T>& p);

/// The functions of one instruction set: a contiguous range of rows, one thread. dw and dgain are
/// added to.
template <class T>
struct ElementwiseTable {
  void (*rms_norm_forward)(const RmsNormForward<T>&, int64_t begin, int64_t end);
  void (*rms_norm_backward)(const RmsNormBackward<T>&, int64_t begin, int64_t end, float* dw);
  void (*swiglu_forward)(const SwigluForward<T>&, int64_t begin, int64_t end);
  void (*swiglu_backward)(const SwigluBackward<T>&, int64_t begin, int64_t end);
  void (*rotate_forward)(const HeadRotation<T>&, int64_t begin, int64_t end);
  void (*rotate_backward)(const HeadRotation<T>&, int64_t begin, int64_t end, float* dgain,
                          float* scratch);
  void (*cross_entropy)(const CrossEntropy<T>&, int64_t begin, int64_t end);
};
/// Those of chosen_isa().
template <class T>
const ElementwiseTable<T>& elementwise_table();

}  // namespace fovea::kernels
