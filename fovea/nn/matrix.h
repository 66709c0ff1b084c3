// Matrices of linear layers as tensors: plain [outputs, inputs], or packed.
//
// A packed matrix is a tensor of bytes [outputs, blocks, bytes of a block]: its last axis tells the
// format, its rows are those of kernels/common/weight_format.h. Packed matrices serve inference.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "fovea/kernels/common/weight_format.h"

namespace fovea {

/// f32, bf16, q8_0, q4_0, q4_1.
std::span<const std::string_view> enum_names(kernels::WeightFormat);
/// exact, int8.
std::span<const std::string_view> enum_names(kernels::Activations);

bool is_packed(const at::Tensor& matrix);
/// Nothing for tensors that no kernel reads: other number formats, strided ones.
std::optional<kernels::WeightFormat> format_of(const at::Tensor& matrix);
/// The rows of a matrix with a format.
kernels::WeightRows weight_rows(const at::Tensor& matrix);
/// Columns of the matrix that it stands for.
int64_t matrix_inputs(const at::Tensor& matrix);
/// Numbers of the matrix that it stands for.
int64_t matrix_numel(const at::Tensor& matrix);
/// Shape of a matrix [outputs, inputs] in this format. ShapeError where rows are no whole number of
/// blocks.
std::vector<int64_t> packed_shape(kernels::WeightFormat format, at::IntArrayRef shape);

/// The numbers of a matrix, packed into `to`, which has packed_shape(). NumericalError where a
/// block's scale is beyond float16.
void pack(const at::Tensor& numbers_oi, kernels::WeightFormat format, at::Tensor& to);
/// Whether all numbers are finite; of a packed matrix, its scales.
bool is_finite(const at::Tensor& matrix);
/// The plain matrix [outputs, inputs] in `dtype`; a plain one is converted as usual.
at::Tensor unpacked(const at::Tensor& matrix, at::ScalarType dtype);

/// The form of x that products of many rows with this matrix read: rounded to 8 bits, in x's dtype,
/// where the matrix is packed and `activations` say int8. In bfloat16 the rounded numbers are
/// rounded once more. (int16 is for products of a few rows.)
at::Tensor as_read(const at::Tensor& x_ri, const at::Tensor& matrix,
                   kernels::Activations activations);

/// x W^T of matrices of which some are packed, side by side, in x's dtype, without a gradient: each
/// is unpacked a few MB at a time.
at::Tensor packed_product(const at::Tensor& x_ri, const std::vector<at::Tensor>& matrices,
                          kernels::Activations activations = kernels::Activations::exact);

}  // namespace fovea
