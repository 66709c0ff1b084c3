// Which tensors our kernels compute, and which ones torch's operations.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace fovea {

/// While one lives, this thread computes as on a GPU where a formula has a form for each: norms,
/// rotations, cross-entropy, means of documents. For tests on machines without a GPU.
class WithoutOwnKernels {
 public:
  WithoutOwnKernels() { ++alive; }
  ~WithoutOwnKernels() { --alive; }
  WithoutOwnKernels(const WithoutOwnKernels&) = delete;
  WithoutOwnKernels& operator=(const WithoutOwnKernels&) = delete;

  static bool active() { return alive > 0; }

 private:
  inline static thread_local int alive = 0;
};

/// Whether our kernels compute x: it is on the CPU.
inline bool has_own_kernels(const at::Tensor& x) {
  return x.is_cpu() && !WithoutOwnKernels::active();
}

}  // namespace fovea
