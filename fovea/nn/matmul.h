// The matrix product of the linear layers, by the fastest suitable code that is already loaded.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string_view>
#include <vector>

#include "fovea/kernels/common/weight_format.h"

namespace fovea {

/// Whose float32 product the linear layers take on the CPU. `torch` is the one that torch takes by
/// itself (MKL); `onednn` is the library that torch carries for bfloat16 and convolutions.
enum class LinearLibrary { torch, onednn };
std::span<const std::string_view> enum_names(LinearLibrary);

/// FOVEA_LINEAR=torch|onednn, else onednn on CPUs with AVX2 or AVX-512 that Intel did not make (MKL
/// takes AVX2 code there, slower than oneDNN's), torch elsewhere. A rule and not a timing: the same
/// machine must take the same code in every run for a resumed run to have the same bits.
/// ConfigError for an unknown name. Read once per process.
LinearLibrary linear_library();

/// Product of bfloat16 matrices on the CPU. `native`: torch's own, which is fast where there are
/// instructions for it. `widened`: in float32 with the result rounded, a few rows at a time.
enum class Bfloat16Product { native, widened };
std::span<const std::string_view> enum_names(Bfloat16Product);
/// `native` where has_fast_bfloat16() and on CPUs other than x86-64: a rule, as linear_library().
Bfloat16Product bfloat16_product();

/// x W^T without a gradient: x [..., in], w [out, in] of any strides, both of one dtype; [...,
/// out]. `library` matters for float32 on the CPU only; small products always take torch's.
at::Tensor linear_product(const at::Tensor& x_ri, const at::Tensor& w_oi, LinearLibrary library);
at::Tensor linear_product(const at::Tensor& x_ri, const at::Tensor& w_oi);
/// The same where nothing learns: fewer rows than 64 take the CPU's instructions for bfloat16. In
/// training the form does not depend on rows, which are fewer in several processes.
at::Tensor reading_product(const at::Tensor& x_ri, const at::Tensor& w_oi);
/// The same in bfloat16 on the CPU by float32.
at::Tensor widened_product(const at::Tensor& x_ri, const at::Tensor& w_oi);

/// dY^T x, the gradient of a weight [out, in]: dY [r, out] and x [r, in] of one dtype; in that
/// dtype, or in float32 where bfloat16 is widened.
at::Tensor weight_gradient(const at::Tensor& dy_ro, const at::Tensor& x_ri,
                           Bfloat16Product how = bfloat16_product());

/// Whether few_rows_product() takes these: on the CPU, x float32 or bfloat16, every matrix in a
/// format that kernels read (nn/matrix.h), few rows (leading dimensions of x together). That is 4;
/// 64 where all matrices are packed; any number where these are multiplied in bytes (int8, AVX2).
bool is_few_rows(const at::Tensor& x_ri, const std::vector<at::Tensor>& weights,
                 kernels::Activations activations = kernels::Activations::exact);

/// x W^T for the rows of all weights stacked, without a gradient, in `result`'s dtype: [..., sum
/// out_i]. Reads each weight once and copies none (kernels/common/matvec.h); sums in float32.
/// x is float32 or bfloat16; packed weights read it as `activations` says, int16 for 4 rows at most
/// and exact beyond.
at::Tensor few_rows_product(const at::Tensor& x_ri, const std::vector<at::Tensor>& weights,
                            at::ScalarType result,
                            kernels::Activations activations = kernels::Activations::exact);

}  // namespace fovea
