// Tensors of the operators: new ones on the device of others, and copies that the kernels can read.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <vector>

namespace fovea::python {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

/// Contiguous, on the device of `like`.
Tensor new_floats(const std::vector<int64_t>& sizes, const Tensor& like);
/// [b, h, t, width] in the memory order of [b, t, h, width], on the device and of the dtype of
/// `like`.
Tensor new_by_token(const Tensor& like, int64_t width);
/// Contiguous int64, on the CPU.
Tensor new_places(int64_t rows, int64_t tokens);

/// x, or on a GPU a copy whose rows can be read 16 bytes at once.
Tensor readable_rows(const Tensor& x);
/// x, or its copy on the CPU, for which this waits. int64.
Tensor on_host(const Tensor& x);

}  // namespace fovea::python
