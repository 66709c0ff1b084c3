// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mask_terms.h"

#include "fovea/attention/mechanisms/longformer_rule.h"
#include "fovea/attention/mechanisms/streaming_rule.h"

namespace fovea {

AttentionSpec in_mask_terms(AttentionSpec spec) {
  if (spec.longformer.active()) {
    if (const std::optional<MaskRule> rule = mask_rule_of(spec.longformer)) {
      spec.mask = *rule;
      spec.longformer = {};
    }
  }
  if (spec.streaming.active() && spec.streaming.start == 0) {
    spec.mask = pairs_of(spec.streaming);
    spec.streaming = {};
  }
  return spec;
}

AttentionCall in_mask_terms(AttentionCall call) {
  call.spec = in_mask_terms(std::move(call.spec));
  if (!call.spec.streaming.active()) call.tensors.start_q_bhtd = at::Tensor();
  return call;
}

}  // namespace fovea
