// Makes the plans of the grouped kernels from memberships and places, and runs calls by them
// (internal to attention/; spec 11.5).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fovea/attention/paths/fused_call.h"
#include "fovea/kernels/common/grouped_plan.h"

namespace fovea {

/// Places of the keys, of which the queries are the last: one row for all of the batch, or one
/// each.
struct SelfPlaces {
  std::vector<std::vector<TokenPlace>> rows;
  std::optional<std::string> why_not;  ///< other queries, tokens out of order

  std::span<const TokenPlace> of(int64_t b) const { return rows[rows.size() == 1 ? 0 : b]; }
};
SelfPlaces self_places(const AttentionCall& call);
/// Whether a call has one document a row, with a token at every position.
bool has_default_places(const AttentionContext& context);

/// The rule of a layer's groups.
inline GroupedRule grouped_rule(const AttentionSpec& spec) {
  return {.mask = spec.mask,
          .groups = spec.focus.groups,
          .window = spec.focus.window,
          .sinks = spec.focus.sinks};
}

/// Plans of one layer and batch: one for all rows of the batch, or one each.
struct GroupedPlans {
  std::shared_ptr<const GroupedPlanList> plans;
  std::optional<std::string> why_not;

  /// `classes`, or `block_sparse` and `classes` where rows of the batch differ.
  PlanName name() const;
};

/// Plans for the memberships [b, s] of the call's keys, at their places. None, with the reason,
/// where queries are not the last keys or tokens are not in order. ConfigError where `wanted` is
/// not possible.
GroupedPlans make_grouped_plans(const AttentionCall& call,
                                std::optional<GroupedKind> wanted = std::nullopt);

/// The tiles of plans, as means, into path.tiles and path.causal_tiles.
void count_tiles(std::span<const GroupedPlan> plans, PathTaken& path);

/// Why grouped kernels cannot compute a call, if plans for it exist.
std::optional<std::string> why_not_by_plans(const AttentionCall& call);

/// The call by the grouped kernels. Differentiable in q, k, v, tau and the sink logit; lse is
/// always given.
AttentionResult grouped_attention(const AttentionCall& call, const GroupedPlans& plans);

}  // namespace fovea
