// Weights for inference: matrices in the number format of the computation.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "fovea/nn/transformer_impl.h"

namespace fovea {

void Transformer::hold_matrices_in(at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  for (Parameter& p : impl_->registry.all()) {
    p.trainable = false;
    p.value.set_requires_grad(false);
    const bool matrix = p.name.ends_with("_proj.weight") ||
                        p.name.ends_with("embed_tokens.weight") || p.name == "lm_head.weight";
    // set_data: the layers hold the same tensor.
    if (matrix) p.value.set_data(p.value.to(dtype));
  }
}

}  // namespace fovea
