// Parts and how they are joined.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/paths/parts.h"

#include <limits>

#include "fovea/base/error.h"

namespace fovea {

AttentionCall part_of(const AttentionCall& call, const MaskRule& mask) {
  AttentionCall part = call;
  part.spec.longformer = {};
  part.spec.streaming = {};
  part.spec.head_output = {};
  part.spec.sink_logit = false;
  part.spec.mask = mask;
  AttentionTensors& x = part.tensors;
  for (at::Tensor* unread : {&x.start_q_bhtd, &x.global_q_bhtd, &x.global_k_bgsd, &x.global_v_bgse,
                             &x.head_gain_e, &x.gate_weight, &x.gate_bias, &x.sink_logit_h})
    *unread = at::Tensor();
  part.context.want_lse = true;
  part.context.want_stats = part.context.want_tiles = false;
  part.context.plans = nullptr;
  return part;
}

AttentionResult run_part(const AttentionCall& part) {
  for (const AttentionPath& path : {fused_decode_path(), fused_path()}) {
    if (path.reason_against(part)) continue;
    AttentionResult result = path.run(part);
    result.out_bhte = result.out_bhte.to(at::kFloat);
    return result;
  }
  fail<UnsupportedError>("attention", "no fused kernel for a part of the call");
}

AttentionResult merged(const AttentionResult& a, const AttentionResult& b) {
  const at::Tensor largest = at::maximum(a.lse_bht, b.lse_bht).detach();
  const at::Tensor shift = largest.masked_fill(largest.isneginf(), 0.0);
  const at::Tensor of_a = (a.lse_bht - shift).exp(), of_b = (b.lse_bht - shift).exp();
  const at::Tensor sum = of_a + of_b, empty = sum == 0.0;
  const at::Tensor divisor = sum.masked_fill(empty, 1.0);
  AttentionResult all = a;
  all.out_bhte = (a.out_bhte * (of_a / divisor).unsqueeze(-1))
                     .addcmul(b.out_bhte, (of_b / divisor).unsqueeze(-1));
  all.lse_bht =
      (divisor.log() + shift).masked_fill(empty, -std::numeric_limits<double>::infinity());
  return all;
}

}  // namespace fovea
