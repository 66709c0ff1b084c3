// The attention rule of one layer, for callers that run the decoding kernels on cached keys
// themselves.
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

/// Reason why the decoding kernels cannot run this layer: its attention needs more than a query
/// with keys and values, or its cache is more than one run of rows. Empty for temperature,
/// soft-cap, position bias, window without sinks, sink logit, and for hard Focus (token_keys.h)
/// without mask and position bias.
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
