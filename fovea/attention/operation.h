// An operation with a gradient of its own, as one node of autograd's graph: the one autograd class
// of our kernels.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/object.h>

#include <vector>

namespace fovea {

/// Its numbers and plans, which forward and backward share. Tensors with a gradient are inputs.
/// Inputs are defined tensors, empty ones where an operand is absent.
class Operation : public torch::CustomClassHolder {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// Results of the inputs. Tensors in `kept` come back in the backward pass.
  virtual Tensors forward(const Tensors& inputs, Tensors& kept) const = 0;
  /// Gradients of the inputs, undefined where there is none; `grads` are those of the results,
  /// undefined for zeros. Only the `wanted` ones are used.
  virtual Tensors backward(const Tensors& kept, const Tensors& grads,
                           const std::vector<bool>& wanted) const = 0;
  /// Results with a gradient: the first ones.
  virtual size_t differentiable() const { return SIZE_MAX; }
};

/// The results of an operation, differentiable in its inputs.
Operation::Tensors run_operation(c10::intrusive_ptr<Operation> operation,
                                 const Operation::Tensors& inputs);

}  // namespace fovea
