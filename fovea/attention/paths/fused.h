// Attention by the fused kernels of fovea/kernels/cpu: everything that is pointwise, forward and
// backward (internal to attention/).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fovea/attention/attention.h"
#include "fovea/attention/plan.h"
#include "fovea/kernels/common/visits.h"

namespace fovea {

/// Which keys the queries of one batch visit; the kernels' counterpart of AttentionPlan. Linear in
/// the tokens.
struct VisitPlan {
  std::string name;            ///< "causal", "documents", "window", ... for PathTaken
  std::vector<Visits> visits;  ///< one for all rows of the batch, or one each
};

std::shared_ptr<const VisitPlan> make_visit_plan(const AttentionSpec& spec,
                                                 const AttentionContext& context,
                                                 const CallShape& shape);

/// Why the kernels cannot take this call; "" where they can.
std::string beyond_fused(const AttentionSpec& spec, const at::Tensor& q_bhtd);

/// The call by the kernels. Differentiable as attention() is; lse is always given.
AttentionResult fused_attention(const AttentionSpec& spec, std::shared_ptr<const VisitPlan> plan,
                                const at::Tensor& q_bhtd, const at::Tensor& k_bgsd,
                                const at::Tensor& v_bgse, const AttentionTensors& tensors,
                                const AttentionContext& context);

/// The call by the decoding kernels, which read keys and values where they lie: for few queries, in
/// one document, without gradient. Nothing for other calls.
std::optional<AttentionResult> decode_attention(const AttentionSpec& spec, const at::Tensor& q_bhtd,
                                                const at::Tensor& k_bgsd, const at::Tensor& v_bgse,
                                                const AttentionTensors& tensors,
                                                const AttentionContext& context);

}  // namespace fovea
