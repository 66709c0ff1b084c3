// Log-probabilities of tokens from rows of logits. Private to fovea/engine.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fovea/engine/request.h"
#include "fovea/nn/transformer.h"

namespace fovea {

/// Log-probabilities of `token` and the `top` likeliest of the first `vocabulary` logits of a row.
PlaceLogprobs place_logprobs(const at::Tensor& logits_v, int64_t vocabulary, int32_t token,
                             int64_t top);

/// Log-probabilities of tokens that follow hidden states [t, c], one a state.
std::vector<std::optional<PlaceLogprobs>> following_logprobs(const Transformer& model,
                                                             const at::Tensor& states_tc,
                                                             std::span<const int32_t> tokens,
                                                             int64_t vocabulary, int64_t top);

}  // namespace fovea
