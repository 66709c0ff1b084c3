// Multi-Token Attention: the key-query convolution of logits and weights (paper: Multi-Token
// Attention, Eq. 4 and 5; spec 3, M-1 ... M-21).
//
//   y[h,i,j] = sum_{a < cq, b < ck} K[h,a,b] x[h, i + a - (cq-1), j + b - floor((ck-1)/2)]
//
// x is 0 out of range and where its pair is not allowed (Mask0); rows of other documents do not
// count (3.4, M-11). A document is a run of equal labels.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "fovea/attention/specs/multi_token.h"

namespace fovea {

/// One convolution of x [b, h, rows, s] with kernel [h, cq, ck]. The result has the last `results`
/// rows; the rows before them are the earlier queries (missing ones count as 0). `documents` are
/// the labels of all rows, [b or 1, rows], or undefined. Differentiable in x and the kernel.
///
/// eq5: x must be 0 where row and key are not allowed; `allowed` is not looked at. eq4: x is raw
/// and `allowed` [b or 1, 1, results, s] decides by the row of the result.
at::Tensor key_query_convolution(MultiTokenSpec::Equation equation, const at::Tensor& x_bhrs,
                                 const at::Tensor& kernel_hqk, int64_t results,
                                 const at::Tensor& documents_br, const at::Tensor& allowed_b1ts);

/// Kernels [heads, cq, ck] of the starts that draw nothing, float32.
at::Tensor start_kernel(KernelStart start, double value, int64_t heads, const KernelExtent& extent);

}  // namespace fovea
