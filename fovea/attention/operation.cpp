// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/operation.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace fovea {
namespace {

using torch::autograd::AutogradContext;
using Tensors = Operation::Tensors;

class OperationNode : public torch::autograd::Function<OperationNode> {
 public:
  static Tensors forward(AutogradContext* ctx, const c10::intrusive_ptr<Operation>& operation,
                         at::TensorList inputs) {
    Tensors kept, results = operation->forward(inputs.vec(), kept);
    ctx->save_for_backward(std::move(kept));
    ctx->saved_data["operation"] = c10::IValue::make_capsule(operation);
    ctx->saved_data["inputs"] = static_cast<int64_t>(inputs.size());
    ctx->set_materialize_grads(false);
    if (operation->differentiable() < results.size())
      ctx->mark_non_differentiable(
          {results.begin() + static_cast<std::ptrdiff_t>(operation->differentiable()),
           results.end()});
    return results;
  }

  static Tensors backward(AutogradContext* ctx, const Tensors& grads) {
    const auto operation =
        c10::static_intrusive_pointer_cast<Operation>(ctx->saved_data["operation"].toCapsule());
    std::vector<bool> wanted;
    for (int64_t n = 0; n < ctx->saved_data["inputs"].toInt(); ++n)
      wanted.push_back(ctx->needs_input_grad(static_cast<size_t>(n)));
    Tensors all{at::Tensor()};  // the first is of the operation
    for (at::Tensor& x : operation->backward(ctx->get_saved_variables(), grads, wanted))
      all.push_back(std::move(x));
    return all;
  }
};

}  // namespace

Tensors run_operation(c10::intrusive_ptr<Operation> operation, const Tensors& inputs) {
  return OperationNode::apply(std::move(operation), at::TensorList(inputs));
}

}  // namespace fovea
