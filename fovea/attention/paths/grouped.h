// Hard Focus by the grouped kernels: plans from memberships and places, autograd, decoding
// (internal to attention/; spec 11.5).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fovea/attention/attention.h"
#include "fovea/kernels/common/grouped_plan.h"

namespace fovea {

/// Places of the keys, of which the queries are the last: one row for all of the batch, or one
/// each.
struct SelfPlaces {
  std::vector<std::vector<TokenPlace>> rows;
  std::string
      reason;  ///< why there are none: other queries, tokens out of order; "" where there are

  std::span<const TokenPlace> of(int64_t b) const { return rows[rows.size() == 1 ? 0 : b]; }
};
SelfPlaces self_places(const AttentionContext& context, int64_t queries, int64_t keys,
                       int64_t batch);

/// The rule of a layer's groups.
inline GroupedRule grouped_rule(const AttentionSpec& spec) {
  return {.mask = spec.mask,
          .groups = spec.focus.groups,
          .window = spec.focus.window,
          .sinks = spec.focus.sinks};
}

/// Plans of one layer and batch: one for all rows of the batch, or one each.
struct GroupedPlans {
  std::vector<GroupedPlan> plans;
  std::string reason;  ///< why there are none; "" where there are

  /// "classes", or "classes+block_sparse" where rows of the batch differ.
  std::string name() const;
};

/// Plans for keys with memberships [b, s] (int64 bits) and the last `queries` of them, at the
/// places of `context`. No plans, with the reason, where queries are not the last keys or tokens
/// are not in order. ShapeError where memberships are out of range, ConfigError where `wanted` is
/// not possible.
GroupedPlans make_grouped_plans(const AttentionSpec& spec, const at::Tensor& members_bs,
                                int64_t queries, const AttentionContext& context,
                                std::optional<GroupedKind> wanted = std::nullopt);

/// The tiles of plans, as means, into path.tiles and path.causal_tiles.
void count_tiles(std::span<const GroupedPlan> plans, PathTaken& path);

/// Why the grouped kernels cannot take this call; "" where they can, if plans exist.
std::string beyond_grouped(const AttentionSpec& spec, const at::Tensor& q_bhtd,
                           const AttentionContext& context);

/// The call by the grouped kernels. Differentiable in q, k, v, tau and the sink logit; lse is
/// always given.
AttentionResult grouped_attention(const AttentionSpec& spec, GroupedPlans plans,
                                  const at::Tensor& q_bhtd, const at::Tensor& k_bgsd,
                                  const at::Tensor& v_bgse, const AttentionTensors& tensors,
                                  const AttentionContext& context);

/// One query a sequence by a scan of its keys' memberships (decoding): keys and values are read
/// where they lie. Nothing where the call has more queries, documents, wants a gradient or
/// telemetry, or positions do not ascend.
std::optional<AttentionResult> grouped_decode(const AttentionSpec& spec, const at::Tensor& q_bhtd,
                                              const at::Tensor& k_bgsd, const at::Tensor& v_bgse,
                                              const AttentionTensors& tensors,
                                              const AttentionContext& context);

}  // namespace fovea
