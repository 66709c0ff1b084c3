// The kernels for a tensor: from torch's devices and dtypes to those of kernels/backend.h. The one
// place that knows both.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "fovea/base/error.h"
#include "fovea/kernels/backend.h"
#include "fovea/runtime/own_kernels.h"

namespace fovea {

/// Null where the device has no kernels.
const kernels::Backend* backend_of(c10::Device device);

/// The backend of x. UnsupportedError where its device has none.
const kernels::Backend& backend_for(const at::Tensor& x);

/// Whether kernels of ours solve problems of a kind that are stored like x.
template <template <class> class Problem>
bool has_kernel(const at::Tensor& x) {
  const kernels::Backend* const backend =
      WithoutOwnKernels::active() ? nullptr : backend_of(x.device());
  if (backend == nullptr) return false;
  if (x.scalar_type() == at::kFloat) return !backend->why_not(Problem<float>());
  return x.scalar_type() == at::kBFloat16 && !backend->why_not(Problem<BFloat16>());
}

/// f(float{}) or f(BFloat16{}); UnsupportedError for every other dtype.
template <class F>
auto with_kernel_type(at::ScalarType dtype, std::string_view where, const F& f) {
  if (dtype == at::kFloat) return f(float{});
  if (dtype == at::kBFloat16) return f(BFloat16{});
  fail<UnsupportedError>(where, "kernels take Float and BFloat16; got {}", at::toString(dtype));
}

}  // namespace fovea
