// The path of the mixing kernels, for stages that join queries, keys or heads (internal to
// attention/).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "fovea/attention/call.h"
#include "fovea/attention/paths/fused_call.h"
#include "fovea/kernels/backend.h"

namespace fovea {

/// Whether a stage of the spec joins queries, keys or heads.
bool joins_pairs(const AttentionSpec& spec);

/// The operands of the stages that join pairs, float32; empty tensors where a stage is neutral.
struct MixingOperands {
  at::Tensor kernel_before_hqk, kernel_after_hqk, mix_before_noi, mix_after_nio;

  Operation::Tensors list() const {
    return {kernel_before_hqk, kernel_after_hqk, mix_before_noi, mix_after_nio};
  }
};
MixingOperands mixing_operands(const AttentionTensors& tensors);

/// The kernels' rule, which points into the operands.
kernels::MixingRule mixing_rule(const AttentionSpec& spec, const MixingOperands& operands);
/// The rule of a spec by its sizes alone: whether there are kernels for it.
kernels::MixingRule mixing_sizes(const AttentionSpec& spec);

/// Why a backend's kernels cannot decode a spec with so many rows of queries.
std::optional<std::string> why_not_mixed_rows(const kernels::Backend& backend,
                                              const AttentionSpec& spec, int64_t rows);

/// The memberships [b, s] that hard Focus reads, contiguous; undefined where the call's rule for
/// distant keys is not that of groups.
at::Tensor contiguous_members(const AttentionCall& call);
/// The kernels' form of them, which points into them; the queries are the last of the keys.
kernels::MemberMask member_mask(const FocusSpec& focus, const at::Tensor& members_bs,
                                int64_t queries);

/// Gradients of the operands of a call.
struct MixedOperands {
  FusedOperands fused;
  MixingOperands mixing;
};
/// Whether mixing_backward() computes a call's gradients: the forward pass kept nothing that
/// attention() does not return (sums of renormalised rows), and it went over strips.
bool has_mixing_backward(const AttentionCall& call);
/// From the results of the forward pass, whose kernels do not run again. dout or dlse may be
/// undefined; so is what belongs to an operand that is not there.
MixedOperands mixing_backward(const AttentionCall& call, const at::Tensor& out,
                              const at::Tensor& lse, const at::Tensor& dout,
                              const at::Tensor& dlse);

/// Why the mixing kernels cannot compute a call. Looks at the spec and dtype; tensors of
/// stages may be missing.
std::optional<std::string> why_not_mixing(const AttentionCall& call);

}  // namespace fovea
