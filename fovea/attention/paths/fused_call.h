// A call of the fused kernels from tensors: what their sources share (internal to attention/).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/jit/api/object.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "fovea/attention/attention.h"
#include "fovea/attention/paths/fused.h"
#include "fovea/kernels/common/contract.h"
#include "fovea/kernels/common/grouped_plan.h"

namespace fovea {

/// What forward and backward share besides tensors. Travels through autograd as a capsule.
struct FusedCall : torch::CustomClassHolder {
  std::shared_ptr<const VisitPlan> plan;  ///< of the pointwise kernels, or
  std::vector<GroupedPlan> grouped;       ///< of the grouped ones
  kernels::ScoreParameters rule;          ///< without the pointers to tensors
  std::vector<float> alibi;               ///< slopes
  bool learned_gate = false;              ///< the strength is a column of the gate's factors
  bool want_stats = false;
};

/// The tensors of one call, prepared for the kernels; empty ones where a stage is neutral.
struct FusedOperands {
  at::Tensor q, k, v, tau_bt, bias_hn, sink_h;  ///< bias by distance
  at::Tensor gate_btk, gate_bsk;  ///< factors of the gate of Focus (kernels/common/pair_gate.h)
};

c10::intrusive_ptr<FusedCall> fused_call(const AttentionSpec& spec,
                                         std::shared_ptr<const VisitPlan> plan,
                                         const AttentionContext& context);

/// float16 becomes float32. Differentiable.
FusedOperands fused_operands(const AttentionSpec& spec, const at::Tensor& q_bhtd,
                             const at::Tensor& k_bgsd, const at::Tensor& v_bgse,
                             const AttentionTensors& tensors);

/// The call by the pointwise or the grouped kernels: everything of the result but its path, in the
/// dtype of q before fused_operands(). Differentiable in the operands.
AttentionResult run_kernels(const FusedOperands& x, at::ScalarType dtype,
                            c10::intrusive_ptr<FusedCall> call);

/// Whether the decoding kernels can take a call: few rows, one document, no gradient, no telemetry.
bool is_decoding(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                 const at::Tensor& v, const AttentionTensors& tensors,
                 const AttentionContext& context);

/// Such a call by them: what rows [batch * queries] see, or the list of keys that the one query of
/// every row of the batch sees. Everything of the result but its path's name, plan and reason.
AttentionResult run_decoding(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, const AttentionTensors& tensors,
                             const AttentionContext& context, std::span<const RowVisits> rows);
AttentionResult run_decoding(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, const AttentionTensors& tensors,
                             const AttentionContext& context,
                             std::span<const std::vector<int32_t>> keys_seen);

kernels::ScoreParameters rule_of(const FusedCall& call, const FusedOperands& x);
kernels::AttentionSizes sizes_of(const FusedOperands& x);

/// Gradients of the operands, undefined where an operand is empty. dout or dlse may be undefined.
FusedOperands fused_backward(const FusedCall& call, const FusedOperands& x, const at::Tensor& out,
                             const at::Tensor& lse, const at::Tensor& dout, const at::Tensor& dlse);

/// The gradient of the T5 table [buckets, h] from that of the bias by distance [h, n].
at::Tensor bias_table_gradient(const AttentionSpec& spec, const at::Tensor& dbias_hn);

/// The gradient of Focus groups [b, s, K] from those of the gate's factors, where the strength is
/// not learned.
at::Tensor groups_gradient(const AttentionSpec& spec, const at::Tensor& dgate_btk,
                           const at::Tensor& dgate_bsk);

/// The name of the kernels' instruction set for a dtype.
std::string kernel_isa(at::ScalarType dtype);

/// [b, h, t, ...] in the memory order of [b, t, h, ...], so that merging heads afterwards needs no
/// copy.
inline at::Tensor empty_by_token(std::vector<int64_t> sizes, const at::TensorOptions& options) {
  std::swap(sizes[1], sizes[2]);
  return at::empty(sizes, options).transpose(1, 2);
}

inline at::Tensor contiguous_rows(const at::Tensor& x) {
  return x.stride(3) == 1 ? x : x.contiguous();
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
