// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/weight_fill.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "fovea/runtime/memory_limit.h"

namespace fovea {
namespace {

bool is_matrix(const Parameter& p) {
  return p.name.ends_with("_proj.weight") || p.name.ends_with("embed_tokens.weight") ||
         p.name == "lm_head.weight";
}

}  // namespace

WeightFill::WeightFill(Transformer& model, at::ScalarType matrices) : matrices_(matrices) {
  const auto item = static_cast<int64_t>(at::elementSize(matrices));
  int64_t bytes = 0;
  for (Parameter& p : model.parameters().all()) {
    if (matrices != at::kFloat) {
      p.trainable = false;
      p.value.set_requires_grad(false);
    }
    if (is_matrix(p)) bytes += HugePages::padded(p.value.numel() * item);
  }
  if (!model.device().is_cpu()) return;
  require_memory("the model's matrices", static_cast<double>(bytes));
  memory_.emplace(bytes);
}

void WeightFill::set(Parameter& parameter, const at::Tensor& numbers) {
  const at::NoGradGuard no_grad;
  if (!is_matrix(parameter)) {
    parameter.value.copy_(numbers);
    return;
  }
  // The layers hold the same tensor.
  parameter.value.set_data(memory_ ? memory_->take(numbers.sizes().vec(), matrices_).copy_(numbers)
                                   : numbers.to(parameter.value.device(), matrices_));
}

void Transformer::hold_matrices_in(at::ScalarType dtype) {
  WeightFill fill(*this, dtype);
  for (Parameter& p : parameters().all()) {
    p.trainable = false;
    p.value.set_requires_grad(false);
    fill.set(p, p.value.detach());
  }
}

}  // namespace fovea
