// Shared parts of the drivers of grouped attention (internal to kernels/cpu).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/grouped/grouped.h"
#include "fovea/kernels/cpu/pointwise/attention_driver.h"

namespace fovea::kernels {

inline const GroupedPlan& plan_of(std::span<const GroupedPlan> plans, int64_t b) {
  return plans[plans.size() == 1 ? 0 : static_cast<size_t>(b)];
}

/// Columns of tokens from `first` on, with their memberships. Columns that are absent are not read
/// by the rule; any others stand for them.
inline PlaceColumns places_of(const TokenColumns& tokens, std::span<const int32_t> low,
                              std::span<const int32_t> high, int64_t first = 0) {
  const int32_t* const position = tokens.position.data() + first;
  return {position,
          tokens.document.data() + first,
          tokens.pattern_id.empty() ? position : tokens.pattern_id.data() + first,
          tokens.open.empty() ? position : tokens.open.data() + first,
          low.empty() ? nullptr : low.data() + first,
          high.empty() ? nullptr : high.data() + first};
}

inline int64_t key_slots(const GroupedPlan& plan) { return std::ssize(plan.far.key.token); }
inline int64_t query_slots(const GroupedPlan& plan) { return std::ssize(plan.far.query.token); }

/// UnsupportedError or ShapeError.
void check_grouped(const AttentionSizes& sizes, const ScoreParameters& rule,
                   std::span<const GroupedPlan> plans);

}  // namespace fovea::kernels
