// The pipeline through torch's scaled_dot_product_attention (internal to attention/).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "fovea/attention/attention.h"
#include "fovea/attention/plan.h"

namespace fovea {

/// Scale (constant or tau), position bias, mask by `plan` and sink logit; the caller has made sure
/// that nothing else acts and that no row is empty. On the CPU lse comes with it, differentiable
/// with `want_lse`; elsewhere there is neither lse nor sink logit.
AttentionResult sdpa_attention(const AttentionSpec& spec, const AttentionPlan& plan,
                               const at::Tensor& q_bhtd, const at::Tensor& k_bgsd,
                               const at::Tensor& v_bgse, const AttentionTensors& tensors,
                               bool want_lse);

}  // namespace fovea
