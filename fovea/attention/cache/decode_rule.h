// The rule of one layer for callers that give cached keys to the decoding kernels themselves.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "fovea/attention/attention.h"
#include "fovea/kernels/common/contract.h"

namespace fovea {

/// Why a query with its keys and values is not all that attention of a layer needs, or where its
/// cache is more than one run of rows. Nothing for temperature, soft-cap, position bias, window
/// without sinks, sink logit, hard Focus (token_keys.h) without mask and position bias.
std::optional<std::string> why_not_decode_rule(const AttentionSpec& spec);

/// The position bias of `spec` in the kernels' form, shared by all layers with that bias.
struct DecodeBias {
  std::vector<float> alibi;
  at::Tensor bias_hn;  ///< by distance
};
DecodeBias decode_bias(const AttentionSpec& spec, const at::Tensor& bias_table);

/// The rule without a learned temperature. It points into `bias` and `sink_logit_h` (float32,
/// contiguous, or undefined).
kernels::ScoreParameters decode_rule(const AttentionSpec& spec, const DecodeBias& bias,
                                     const at::Tensor& sink_logit_h);

}  // namespace fovea
