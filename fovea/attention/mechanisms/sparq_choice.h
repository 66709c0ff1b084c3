// SparQ's choice of keys by the largest components of a query (spec 4.4; internal to attention/).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "fovea/attention/mechanisms/selector.h"

namespace fovea {

/// Queries cut to their components, and the factor of their products with keys:
/// 1 / sqrt(d |q_I|_1 / |q|_1), where sqrt(d) stands for the layer's own scale.
struct SparqRows {
  at::Tensor components_bgtd;  ///< bool: I
  at::Tensor q_bhtd;           ///< 0 outside of I
  at::Tensor scale_bht;
};
SparqRows sparq_rows(const AttentionSpec& spec, const at::Tensor& q_bhtd, const at::Tensor& tau_bt);

Selection sparq_selection(const SelectorRows& rows);

}  // namespace fovea
