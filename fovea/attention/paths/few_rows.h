// Attention of a few queries to all keys before them: forward by the kernels for few rows, and a
// gradient that reads keys and values once (kernels/common/few_keys.h; internal to
// attention/).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "fovea/attention/paths/parts.h"

namespace fovea {

/// Spec and places of the rows, without the tensors that have gradients. Inputs:
/// FewRowsOperands::list(); results: out and lse.
struct FewRowsCall : Operation {
  AttentionCall part;
  std::vector<uint64_t> seen;  ///< of every key, bit n where query n reads it
  bool keeps_rest = false;     ///< as in FusedCall

  Tensors forward(const Tensors& inputs, Tensors& kept) const override;
  Tensors backward(const Tensors& kept, const Tensors& grads,
                   const std::vector<bool>& wanted) const override;
};
c10::intrusive_ptr<FewRowsCall> few_rows_call(const AttentionCall& part,
                                              std::vector<uint64_t> seen);

/// float32 or bfloat16; tau and sink in float32, empty where there are none.
struct FewRowsOperands {
  at::Tensor q_bhnd, k_bgsd, v_bgse, tau_bn, sink_h;
};
/// Output and lse; no autograd.
/// `rest`: as in FusedResults, where the call keeps it.
AttentionResult few_rows_forward(const FewRowsCall& call, const FewRowsOperands& x,
                                 at::Tensor& rest);

enum class KeyGradients { written, added };
/// Gradients into given memory, of all but the sink logits: those [h] become g.sink_bh.
void few_rows_backward(const FewRowsCall& call, const FewRowsOperands& x, const FusedResults& r,
                       FusedGradients& g, KeyGradients keys);

/// run_part() of such a part. Differentiable.
AttentionResult run_few_rows(const AttentionCall& part, std::vector<uint64_t> seen);

}  // namespace fovea
