// Builds the far pairs of a plan, and lists the sets of groups that occur (internal to the plans).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "fovea/kernels/common/grouped_plan.h"

namespace fovea {

/// More distinct sets than this are not sorted into classes: their lists would be shorter than a
/// block.
constexpr int64_t kMostClasses = 256;

/// The distinct sets of groups, in order of appearance, and the set of every token; `sets` is empty
/// where there are more than kMostClasses.
struct MemberSets {
  std::vector<uint64_t> sets;
  std::vector<int32_t> of_token;
};
MemberSets member_sets(std::span<const uint64_t> members);

/// `plan` has everything but far, whose arrays are kept in `memory`.
FarPairs class_pairs(const GroupedPlan& plan, const MemberSets& sets, PlanMemory& memory);
FarPairs listed_pairs(const GroupedPlan& plan, const std::vector<std::vector<int32_t>>& keys,
                      const std::vector<std::vector<int32_t>>& queries, const IntRows& visits,
                      PlanMemory& memory);
FarPairs group_pairs(const GroupedPlan& plan, std::span<const uint64_t> members,
                     PlanMemory& memory);

/// Columns of positions and documents, and the ranges of near keys (of a plan with its rule).
void set_token_places(GroupedPlan& plan, std::span<const TokenPlace> places);

}  // namespace fovea
