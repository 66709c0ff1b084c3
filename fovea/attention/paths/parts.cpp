// Parts and how they are joined.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/paths/parts.h"

#include "fovea/attention/pipeline.h"
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
  AttentionResult all = a;
  AttentionPart both = merge_parts({a.out_bhte, a.lse_bht}, {b.out_bhte, b.lse_bht});
  all.out_bhte = std::move(both.out_bhte);
  all.lse_bht = std::move(both.lse_bht);
  return all;
}

namespace {

AttentionPath path_in_parts(const AttentionCall& call) {
  return call.spec.longformer.active() ? longformer_path() : streaming_path();
}

}  // namespace

AttentionPath parts_path() {
  return {.name = PathName::fused,
          .runs_on = has_kernels<kernels::FewKeys>,
          .key_rule = KeyRule::parts,
          .why_not = [](const AttentionCall& call) { return path_in_parts(call).why_not(call); },
          .run = [](const AttentionCall& call) { return path_in_parts(call).run(call); }};
}

}  // namespace fovea
