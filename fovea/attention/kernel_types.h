// Maps a tensor's dtype to the element type of the kernels.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include "fovea/base/error.h"
#include "fovea/kernels/common/bfloat16.h"

namespace fovea {

/// f(float{}) or f(BFloat16{}); UnsupportedError for every other dtype.
template <class F>
auto with_kernel_type(at::ScalarType dtype, std::string_view where, const F& f) {
  if (dtype == at::kFloat) return f(float{});
  if (dtype == at::kBFloat16) return f(BFloat16{});
  fail<UnsupportedError>(where, "kernels take Float and BFloat16; got {}", at::toString(dtype));
}

}  // namespace fovea
