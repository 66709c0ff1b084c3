// Converts the tensors of a call to kernel arguments and back, for all paths of our kernels
// (internal to attention/).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "fovea/attention/operation.h"
#include "fovea/attention/paths/path.h"
#include "fovea/attention/plan.h"
#include "fovea/kernels/common/contract.h"
#include "fovea/kernels/common/grouped_plan.h"

namespace fovea {

/// Plans of the grouped kernels: one for all rows of the batch, or one each.
using GroupedPlanList = std::vector<GroupedPlan>;

/// A call by the pointwise or the grouped kernels. Inputs: FusedOperands::list(); results: out, lse
/// and, where the call wants telemetry, the numbers of every row [b, h, t, 3].
struct FusedCall : Operation {
  std::shared_ptr<const BatchVisits> visits;       ///< of the pointwise kernels, or
  std::shared_ptr<const GroupedPlanList> grouped;  ///< of the grouped ones
  kernels::ScoreParameters rule;                   ///< without the pointers to tensors
  at::Tensor alibi_h;                              ///< slopes, on the call's device
  bool learned_gate = false;  ///< the strength is a column of the gate's factors
  bool want_stats = false;
  bool keeps_rest = false;  ///< for the gradient: the part of out that rounding took

  Tensors forward(const Tensors& inputs, Tensors& kept) const override;
  Tensors backward(const Tensors& kept, const Tensors& grads,
                   const std::vector<bool>& wanted) const override;
  size_t differentiable() const override { return 2; }
};

/// The tensors of one call, prepared for the kernels; empty ones where a stage is neutral.
struct FusedOperands {
  at::Tensor q, k, v, tau_bt, bias_hn, sink_h;  ///< bias by distance
  at::Tensor gate_btk, gate_bsk;  ///< factors of the gate of Focus (kernels/common/pair_gate.h)

  Operation::Tensors list() const { return {q, k, v, tau_bt, bias_hn, sink_h, gate_btk, gate_bsk}; }
  /// The operands from the first tensors of a list; rows are made contiguous.
  static FusedOperands of(const Operation::Tensors& list);
};
constexpr size_t kFusedOperands = 8;

/// Why no kernel of ours computes the call, whatever its rule for distant keys: dtype, widths,
/// stages that join pairs.
std::optional<std::string> why_not_kernels(const AttentionCall& call);
/// Why the kernels cannot compute the pairs' gate of Focus.
std::optional<std::string> why_not_gate(const FocusSpec& focus);
/// Why the pointwise kernels cannot compute the call.
std::optional<std::string> why_not_pointwise(const AttentionCall& call);

/// How a soft gate of Focus becomes one of the kernels (11.2): z = gain g_i.g_j + offset. Form none
/// for other gates.
struct GateForm {
  kernels::PairGate::Form form = kernels::PairGate::Form::none;
  double gain = 1.0, offset = 0.0;
};
GateForm gate_form(const FocusSpec& focus, double strength);

/// The settings of a call, for questions to a backend: pointers may only be compared with null.
kernels::ScoreParameters asked_rule(const AttentionCall& call);

/// A call by the pointwise kernels, or by the grouped ones. Without its plan.
c10::intrusive_ptr<FusedCall> fused_call(const AttentionCall& call);

/// float16 becomes float32. Differentiable.
FusedOperands fused_operands(const AttentionCall& call);

/// The call by the pointwise or the grouped kernels: everything of the result but plan and reason.
/// Differentiable in the operands.
AttentionResult run_kernels(const AttentionCall& call, std::shared_ptr<const BatchVisits> visits);
AttentionResult run_kernels(const AttentionCall& call,
                            std::shared_ptr<const GroupedPlanList> grouped);

/// The visits of the call, from its context's PlanCache where it has one.
std::shared_ptr<const BatchVisits> visits_of(const AttentionCall& call);

/// Why no kernel that reads keys where they lie can take a call that other kernels can: documents,
/// a gradient, dropout, telemetry.
std::optional<std::string> why_not_in_place(const AttentionCall& call);
/// Why the decoding kernels, which are for few rows, cannot take the call.
std::optional<std::string> why_not_decoding(const AttentionCall& call);

/// Keys that every row sees, [batch * queries]; empty where a row sees more than two ranges of
/// keys.
using RowsSeen = std::vector<RowVisits>;
RowsSeen rows_seen(const AttentionCall& call);

/// Runs a call by the decoding kernels. `rows` [batch * queries] has the keys that every row sees.
/// `keys_seen` lists the keys that the one query of every row of the batch sees. The result has
/// everything but plan and reason.
AttentionResult run_decoding(const AttentionCall& call, std::span<const RowVisits> rows);
AttentionResult run_decoding(const AttentionCall& call, const IntRows& keys_seen);

/// A few keys more that join the softmax of all rows (kernels/common/few_keys.h).
struct FusedFew {
  at::Tensor q, k, v;                 ///< of all tokens
  std::span<const int64_t> key_rows;  ///< the few
  std::vector<uint64_t> seen;         ///< [sets][queries], kernels::SeenSets
  std::vector<int32_t> set_bh;        ///< [batch][heads]
  bool own_queries = false;           ///< q is not the call's
};
/// dk and dv [batch, kv_heads, keys, width filled up] in float32, all written; q where queries are
/// own ones.
struct FusedFewGradients {
  at::Tensor q, k, v, tau_bht;
};

/// Gradients as the kernels write them: per batch row or head where they are to be summed.
struct FusedGradients {
  at::Tensor q, k, v, tau_bht, bias_bhn, sink_bh, gate_bhtk, gate_bgsk;
};
/// Memory for the part of out that rounding takes. The backward pass needs it: delta = dO.O cancels
/// against one weight near 1. Undefined in float32, and where no gradient is wanted.
at::Tensor rest_like(const at::Tensor& out, bool wants_gradient);

/// Output, its rest (or undefined) and lse (contiguous) into given memory; no autograd.
void fused_forward_into(const FusedCall& call, const FusedOperands& x, const FusedFew* few,
                        const at::Tensor& out, const at::Tensor& rest, const at::Tensor& lse);
/// Results of the softmax that the rows are part of, and their gradients; dlse and rest may be
/// undefined.
struct FusedResults {
  at::Tensor out, lse, dout, dlse, rest;
};
/// From the gradients of out and lse as autograd has them.
FusedResults results_of(const at::Tensor& out, const at::Tensor& lse,
                        const Operation::Tensors& grads, const at::Tensor& rest = {});
/// Gradients into given memory; those of few keys where there are some.
void fused_backward_into(const FusedCall& call, const FusedOperands& x, const FusedResults& r,
                         const FusedGradients& g, const FusedFew* few = nullptr,
                         const FusedFewGradients* few_gradients = nullptr);

kernels::ScoreParameters rule_of(const FusedCall& call, const FusedOperands& x);
kernels::AttentionSizes sizes_of(const FusedOperands& x);
/// Heads and widths, for questions to a backend.
kernels::AttentionSizes sizes_of(const AttentionSpec& spec, int64_t queries = 1);

/// Gradients of the operands, undefined where an operand is empty. dout or dlse may be undefined.
FusedOperands fused_backward(const FusedCall& call, const FusedOperands& x, const at::Tensor& out,
                             const at::Tensor& lse, const at::Tensor& dout, const at::Tensor& dlse,
                             const at::Tensor& rest = {});

/// The gradient of Focus groups [b, s, K] from those of the gate's factors, where the strength is
/// not learned.
at::Tensor groups_gradient(const AttentionSpec& spec, const at::Tensor& dgate_btk,
                           const at::Tensor& dgate_bsk);

/// The instruction set of the pointwise kernels for x; UnsupportedError for dtypes without some.
std::string kernel_isa(const at::Tensor& x);

/// [b, h, t, ...] in the memory order of [b, t, h, ...], so that merging heads afterwards needs no
/// copy.
inline at::Tensor empty_by_token(std::vector<int64_t> sizes, const at::TensorOptions& options) {
  std::swap(sizes[1], sizes[2]);
  return at::empty(sizes, options).transpose(1, 2);
}

/// float32 for float16, which the kernels do not have.
inline at::ScalarType kernel_dtype(at::ScalarType dtype) {
  return dtype == at::kHalf ? at::kFloat : dtype;
}

/// The result of a call of `dtype`, from the output of an operator in the kernels' dtype.
inline AttentionResult kernel_result(const at::Tensor& out_bhte, at::Tensor lse_bht,
                                     at::ScalarType dtype) {
  AttentionResult result;
  result.out_bhte = out_bhte.to(dtype);  // float16 is computed in float32, rounded once
  result.lse_bht = std::move(lse_bht);
  result.path.isa = kernel_isa(out_bhte);
  return result;
}

/// As a contiguous row of floats, or an empty tensor.
inline at::Tensor floats_or_none(const at::Tensor& x, const at::Tensor& like) {
  return x.defined() ? x.to(at::kFloat).contiguous()
                     : at::empty({0}, like.options().dtype(at::kFloat));
}

/// Where a gradient is written; null where it is not asked for.
inline float* floats_into(const at::Tensor& x) {
  return x.defined() ? x.mutable_data_ptr<float>() : nullptr;
}

/// Whether x can be read 16 bytes at once, as the kernels of a GPU do.
inline bool has_aligned_rows(const at::Tensor& x) {
  if (reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 != 0) return false;
  for (int64_t n = 0; n < 3; ++n) {
    if (x.stride(n) * x.element_size() % 16 != 0) return false;
    if (x.stride(n) == 0 && x.size(n) > 1) return false;
  }
  return true;
}

inline at::Tensor contiguous_rows(const at::Tensor& x) {
  if (x.stride(3) != 1) return x.contiguous();
  return x.is_cpu() || has_aligned_rows(x) ? x : x.clone(at::MemoryFormat::Contiguous);
}

template <class T>
kernels::HeadRows<const T> rows_of(const at::Tensor& x) {
  return {static_cast<const T*>(x.const_data_ptr()), x.stride(0), x.stride(1), x.stride(2)};
}

template <class T>
kernels::HeadRows<T> writable_rows_of(const at::Tensor& x) {
  return {static_cast<T*>(x.data_ptr()), x.stride(0), x.stride(1), x.stride(2)};
}

}  // namespace fovea
