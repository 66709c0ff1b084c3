// torch.ops.fovea.attention and attention_backward: attention() through torch's dispatcher, for C++
// and Python (`torch.ops.load_library("build/lib/libfovea_ops.so")`).
//
//   out, lse = torch.ops.fovea.attention(q, k, v, spec, tau=..., ...)
//
// q [b, h, t, d], k [b, g, s, d], v [b, g, s, e], contiguous along their last axis. `spec` is the
// JSON form of AttentionSpec (docs/attention-case.md), "" for plain causal attention; heads, key
// heads and widths always come from the tensors. dropout_seed switches training on. Meta kernels
// give shapes. out and lse are differentiable in
//   q, k, v, tau, bias_table, sink_logit
//   groups [b, s, K], strength []                 Focus
//   kernel_before, kernel_after [h, cq, ck]       Multi-Token
//   mix_before, mix_after [groups, m, m]          head mixing
//
// `members` [b, s] are int64 memberships that `hard` and `straight_through` read. document_offsets
// [n + 1] is the form 0, ..., t of packed documents. Errors arrive as ValueError (shapes, settings)
// and NotImplementedError (no such path); messages are ours.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace fovea {

/// The arguments after q, k and v, in the order of the schema.
struct AttentionOperands {
  std::string spec;
  std::optional<at::Tensor> tau, bias_table, sink_logit, groups, strength;
  std::optional<at::Tensor> kernel_before, kernel_after, mix_before, mix_after, members;
  std::optional<at::Tensor> query_positions, key_positions, query_documents, key_documents;
  std::optional<at::Tensor> key_lengths, document_offsets;
  std::optional<int64_t> dropout_seed;
  int64_t layer = 0;
};

/// torch.ops.fovea.attention by its name in the dispatcher.
std::tuple<at::Tensor, at::Tensor> call_attention_operator(const at::Tensor& q_bhtd,
                                                           const at::Tensor& k_bgsd,
                                                           const at::Tensor& v_bgse,
                                                           const AttentionOperands& operands = {});

}  // namespace fovea
