// The kernels for a tensor: from torch's devices and dtypes to those of kernels/backend.h. The one
// place that knows both.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "fovea/base/error.h"
#include "fovea/kernels/backend.h"

namespace fovea {

/// Null where the device has no kernels.
const kernels::Backend* backend_of(c10::Device device);

/// The backend of x. UnsupportedError where its device has none.
const kernels::Backend& backend_for(const at::Tensor& x);

/// f(float{}) or f(BFloat16{}); UnsupportedError for every other dtype.
template <class F>
auto with_kernel_type(at::ScalarType dtype, std::string_view where, const F& f) {
  if (dtype == at::kFloat) return f(float{});
  if (dtype == at::kBFloat16) return f(BFloat16{});
  fail<UnsupportedError>(where, "kernels take Float and BFloat16; got {}", at::toString(dtype));
}

}  // namespace fovea
