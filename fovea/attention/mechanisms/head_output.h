// The last steps of each head's output: norm, constant of the depth, gate (stage 10). Sources:
// Multi-Token Attention (spec 3.2 steps 10 and 11, M-6 ... M-8) and Differential (spec 1.2 steps 6
// and 7).
//
//   o = rms(o; w, eps) (1 - lambda_init(l));  o = o sigma(u.o + c)
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "fovea/attention/specs/head_output.h"

namespace fovea {

struct AttentionSpec;
struct AttentionTensors;

/// 0.8 - 0.6 exp(-0.3 l), l from 0 (1.2, M-18).
double lambda_init(int64_t depth);

/// Stage 10 after the values, on out [b, h, t, e]; computed in float32 (float64 for float64). A row
/// of zeros stays one.
at::Tensor head_output(const AttentionSpec& spec, const at::Tensor& out_bhte,
                       const AttentionTensors& tensors);

}  // namespace fovea
