// Mixing heads before and after the softmax: talking-heads attention (spec 2) and the head
// convolution of Multi-Token Attention (3.2 steps 4 and 7, M-5).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "fovea/attention/specs/talking_heads.h"

namespace fovea {

/// Stage 4: s_o = sum_h W[o, h] s_h inside each group; x [b, h, t, s], mix [n, m, m] stored (out,
/// in) with n groups of m consecutive heads.
at::Tensor mix_logits(const at::Tensor& x_bhts, const at::Tensor& mix_noi);

/// Stage 9: P_o = sum_c P_c W[c, o] inside each group; mix [n, m, m] stored (in, out).
at::Tensor mix_weights(const at::Tensor& x_bhts, const at::Tensor& mix_nio);

}  // namespace fovea
