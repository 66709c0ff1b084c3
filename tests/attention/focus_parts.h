// Hard Focus as a union of small attentions: exact decompositions of its mask (spec 11.5, U-9,
// U-11).
//
// A pair of tokens may share several groups, so running every group by itself counts it several
// times. Both schemes here count it once; the pairs that are local form a part of their own. Parts
// over disjoint pairs are merged by their lse (0.1).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "fovea/attention/attention.h"
#include "fovea/attention/pipeline.h"

namespace fovea::testing {

/// The pairs that `pairs` [b or 1, 1, t, s] keeps among the allowed ones of the mask rule.
AttentionPart attend_pairs(const AttentionSpec& spec, const at::Tensor& q_bhtd,
                           const at::Tensor& k_bgsd, const at::Tensor& v_bgse,
                           const AttentionContext& context, const at::Tensor& pairs);

/// `canonical_group`: every group runs over its own tokens and keeps a pair only if it is the
/// lowest common group of both. `membership_classes`: the queries of one exact set of groups attend
/// the keys of all sets that meet it.
enum class FocusScheme { canonical_group, membership_classes };

/// The distant pairs of `hard`, then the local ones, merged. For self-attention (t = s) without
/// stages that join pairs, sink logit or learned inputs beside `members`.
AttentionPart focus_by_parts(const AttentionSpec& spec, const at::Tensor& q_bhtd,
                             const at::Tensor& k_bgsd, const at::Tensor& v_bgse,
                             const at::Tensor& members_bt, const AttentionContext& context,
                             FocusScheme scheme);

}  // namespace fovea::testing
