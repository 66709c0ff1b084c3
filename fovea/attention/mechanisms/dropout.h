// Dropout of attention weights, counter-based (stage 10; kernels/common/dropout.h).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace fovea {

struct AttentionContext;
struct AttentionSpec;
struct Mechanism;

const Mechanism& dropout_mechanism();

/// The factors 1/(1-p) or 0 of counter-based dropout for weights [b, h, rows, columns] whose first
/// entry is (i, j), both counted from the start of the sequence (seam 6).
at::Tensor dropout_factors(const AttentionSpec& spec, const AttentionContext& context, int64_t i,
                           int64_t j, const at::Tensor& weights_bhts);

}  // namespace fovea
