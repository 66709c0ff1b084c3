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

/// What was measured on a text of `context` tokens.
struct MeasuredReads {
  /// The share of distant pairs that the groups of Focus keep (hard); nothing: they prune none.
  std::optional<double> distant_kept = {};
  /// Keys that the last row reads where they are chosen by content (MagicPIG, routing).
  std::optional<double> chosen_keys = {};
};

/// Bytes of keys, values and states that all layers read to write the token behind `context` others
/// with caches of `dtype`, by the rule of each layer: every visible key and value; r components of
/// all keys and k + 1 rows (SparQ, spec 4.4); one state (Performer); what was read on a text where
/// keys are chosen by content. Hash tables are not counted. Nothing where a number is missing.
std::optional<double> cache_bytes_read(const ModelConfig& config, int64_t context,
                                       at::ScalarType dtype, const MeasuredReads& measured = {});

}  // namespace fovea
