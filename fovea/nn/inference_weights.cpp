// Weights for inference: matrices in the number format of the computation, side by side in memory.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <optional>

#include "fovea/attention/cache/huge_pages.h"
#include "fovea/nn/transformer_impl.h"

namespace fovea {
namespace {

bool is_matrix(const Parameter& p) {
  return p.name.ends_with("_proj.weight") || p.name.ends_with("embed_tokens.weight") ||
         p.name == "lm_head.weight";
}

}  // namespace

void Transformer::hold_matrices_in(at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const auto item = static_cast<int64_t>(at::elementSize(dtype));
  int64_t bytes = 0;
  for (const Parameter& p : impl_->registry.all())
    if (is_matrix(p)) bytes += HugePages::padded(p.value.numel() * item);
  std::optional<HugePages> memory;
  if (impl_->device.is_cpu()) memory.emplace(bytes);
  for (Parameter& p : impl_->registry.all()) {
    p.trainable = false;
    p.value.set_requires_grad(false);
    if (!is_matrix(p)) continue;
    const at::Tensor held =
        memory ? memory->take(p.value.sizes().vec(), dtype).copy_(p.value) : p.value.to(dtype);
    p.value.set_data(held);  // the layers hold the same tensor
  }
}

}  // namespace fovea
