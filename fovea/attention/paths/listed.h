// Routing and given block pairs by the grouped kernels (internal to attention/; spec 4.3).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "fovea/attention/attention.h"

namespace fovea {

/// The call by the grouped kernels: a plan for every head (routing) or for all (blocks); one query
/// by the decoding kernels. Nothing, with the reason, where they cannot take it. ShapeError where
/// routes are out of range.
std::optional<AttentionResult> listed_attention(const AttentionSpec& spec, const at::Tensor& q_bhtd,
                                                const at::Tensor& k_bgsd, const at::Tensor& v_bgse,
                                                const AttentionTensors& tensors,
                                                const AttentionContext& context,
                                                std::string& why_not);

}  // namespace fovea
