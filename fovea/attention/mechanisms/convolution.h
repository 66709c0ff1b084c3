// The key-query convolution as one differentiable operation on the CPU's kernels (spec 3, Eq. 5).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace fovea {

/// Whether the kernels take x: on the CPU, float32 or float64.
bool convolution_kernels_take(const at::Tensor& x);

/// The last `results` rows of x [b, h, rows, s] convolved with kernel [h, cq, ck] of the same type;
/// `documents` are labels [b or 1, rows] or undefined (multi_token.h). Differentiable once.
at::Tensor convolution_by_kernels(const at::Tensor& x_bhrs, const at::Tensor& kernel_hqk,
                                  int64_t results, const at::Tensor& documents_br);

}  // namespace fovea
