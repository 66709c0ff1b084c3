// Bytes that a model reads from its caches to write one token: the cost that quality is weighed
// against.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

#include "fovea/nn/model_config.h"

namespace fovea {

/// Measurements on a text of `context` tokens.
struct MeasuredReads {
  /// The share of distant pairs that the groups of Focus keep (hard); nothing: they prune none.
  std::optional<double> distant_kept = {};
  /// Keys that the last row reads where they are chosen by content (MagicPIG, routing).
  std::optional<double> chosen_keys = {};
};

/// Bytes of keys, values and states that all layers read to write the token behind `context` others
/// with caches of `dtype`. Each layer counts by its rule:
/// - every visible key and value
/// - SparQ: r components of all keys, and k + 1 rows (spec 4.4)
/// - Performer: one state
/// - keys chosen by content: those that were measured
///
/// Hash tables are not counted. Nothing where a number is missing.
std::optional<double> cache_bytes_read(const ModelConfig& config, int64_t context,
                                       at::ScalarType dtype, const MeasuredReads& measured = {});

}  // namespace fovea
