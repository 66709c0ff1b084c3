// The stages of the reference.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/pipeline.h"

#include <ATen/ATen.h>

#include <limits>

#include "fovea/attention/isolation.h"

namespace fovea {
at::ScalarType accumulate_type(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor scaled_logits(const AttentionSpec& spec, const at::Tensor& q_bhtd,
                         const at::Tensor& k_bgsd, const at::Tensor& tau_bt) {
  const int64_t b = q_bhtd.size(0), h = q_bhtd.size(1), t = q_bhtd.size(2), g = k_bgsd.size(1),
                s = k_bgsd.size(2);
  // The query heads of one key head become rows of one product, so keys are never repeated.
  const at::Tensor q_rows = q_bhtd.reshape({b, g, h / g * t, q_bhtd.size(3)});
  const at::Tensor raw = pair_scores(q_rows, k_bgsd).reshape({b, h, t, s});
  if (spec.temperature.kind == TemperatureSpec::Kind::learned) {
    return raw / tau_bt.to(raw.scalar_type()).reshape({b, 1, t, 1});
  }
  return raw * spec.logit_scale();
}

Softmax softmax_rows(const at::Tensor& logits, const at::Tensor& sink_logit_h, bool want_lse) {
  const int64_t s = logits.size(3);
  if (sink_logit_h.defined()) {
    // One more key with value 0: the row is never empty, so nothing needs care.
    const at::Tensor sink = sink_logit_h.to(logits.scalar_type()).reshape({1, -1, 1, 1});
    const at::Tensor extended =
        at::cat({logits, sink.expand({logits.size(0), logits.size(1), logits.size(2), 1})}, -1);
    return {at::softmax(extended, -1).narrow(-1, 0, s),
            want_lse ? at::logsumexp(extended, -1) : at::Tensor()};
  }
  if (s == 0)
    return {logits,
            want_lse ? logits.new_full(logits.sizes().slice(0, 3), -kInfinity) : at::Tensor()};
  // Rows of -inf alone would give 0/0: they are computed as rows of zeros and then overwritten,
  // which also cuts the gradient.
  const at::Tensor empty = at::isneginf(at::amax(logits.detach(), -1, true));
  const at::Tensor safe = logits.masked_fill(empty, 0.0);
  Softmax result;
  result.weights_bhts = at::softmax(safe, -1).masked_fill(empty, 0.0);
  if (want_lse) result.lse_bht = at::logsumexp(safe, -1).masked_fill(empty.squeeze(-1), -kInfinity);
  return result;
}

AttentionPart merge_parts(const AttentionPart& a, const AttentionPart& b) {
  const at::Tensor largest = at::maximum(a.lse_bht, b.lse_bht).detach();
  const at::Tensor shift = largest.masked_fill(largest.isneginf(), 0.0);
  const at::Tensor of_a = (a.lse_bht - shift).exp(), of_b = (b.lse_bht - shift).exp();
  const at::Tensor sum = of_a + of_b, empty = sum == 0.0;
  const at::Tensor divisor = sum.masked_fill(empty, 1.0);
  const at::ScalarType type = at::promote_types(a.out_bhte.scalar_type(), divisor.scalar_type());
  const at::Tensor share_of_b = (of_b / divisor).unsqueeze(-1);
  return {at::lerp(a.out_bhte.to(type), b.out_bhte.to(type), share_of_b.to(type)),
          (divisor.log() + shift).masked_fill(empty, -kInfinity)};
}

at::Tensor weighted_values(const at::Tensor& weights, const at::Tensor& v_bgse) {
  const int64_t b = weights.size(0), h = weights.size(1), t = weights.size(2), g = v_bgse.size(1);
  const at::Tensor rows = weights.reshape({b, g, h / g * t, weights.size(3)});
  return weigh_values(rows, v_bgse).reshape({b, h, t, v_bgse.size(3)});
}

}  // namespace fovea
