// What writing one token reads from the caches of a model: the other side of the scale on which
// quality is weighed.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

#include "fovea/nn/model_config.h"

namespace fovea {

/// Bytes of keys, values and states that all layers read to write the token behind `context` others
/// with caches of `dtype`, by the rule of each layer: every visible key and value; r components of
/// all keys and k + 1 rows (SparQ, spec 4.4); one state (Performer). `distant_kept`: the share of
/// distant pairs that the groups of Focus keep (hard), measured on a text; nothing: they prune
/// none. Nothing where a layer chooses by content otherwise (MagicPIG, routing).
std::optional<double> cache_bytes_read(const ModelConfig& config, int64_t context,
                                       at::ScalarType dtype,
                                       std::optional<double> distant_kept = std::nullopt);

}  // namespace fovea
