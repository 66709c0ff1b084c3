// The reference: attention as a composition of plain tensor operations, in the order of the stage
// table. It is the definition.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "fovea/attention/attention.h"
#include "fovea/attention/pipeline.h"
#include "fovea/base/error.h"

namespace fovea {

AttentionResult reference_attention(const AttentionSpec& spec, const at::Tensor& q,
                                    const at::Tensor& k, const at::Tensor& v,
                                    const AttentionTensors& tensors,
                                    const AttentionContext& context) {
  check_inputs(spec, q, k, v, tensors, context);
  const Places places = resolve_places(context, q.size(2), k.size(2), q.device());
  const at::Tensor logits = masked_logits(spec, q, k, tensors, places);
  Softmax rows = softmax_rows(logits, tensors.sink_logit_h, context.want_lse);
  if (spec.dropout > 0.0 && context.training) {
    rows.weights_bhts = rows.weights_bhts * dropout_factors(spec, context, q.size(0), q.size(2),
                                                            k.size(2), rows.weights_bhts);
  }
  AttentionResult result;
  result.out_bhte =
      weighted_values(rows.weights_bhts, v.to(logits.scalar_type())).to(q.scalar_type());
  result.lse_bht = rows.lse_bht;
  result.path = {.name = "reference", .isa = "", .plan = "dense", .reason = ""};
  return result;
}

at::Tensor attention_rows(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                          const AttentionTensors& tensors, const AttentionContext& context,
                          std::span<const int64_t> heads, std::span<const int64_t> queries) {
  const at::NoGradGuard no_gradient;
  AttentionSpec keys_only = spec;  // maps need no values: the keys stand in for them in the checks
  keys_only.value_dim = spec.head_dim;
  check_inputs(keys_only, q, k, k, tensors, context);
  for (const int64_t head : heads) {
    require<ShapeError>(head >= 0 && head < spec.heads, "attention_rows",
                        "heads must be below {}; got {}", spec.heads, head);
  }
  for (const int64_t row : queries) {
    require<ShapeError>(row >= 0 && row < q.size(2), "attention_rows",
                        "queries must be below {}; got {}", q.size(2), row);
  }
  const auto index = [&](std::span<const int64_t> list) {
    return at::tensor(at::IntArrayRef(list.data(), list.size()), at::kLong).to(q.device());
  };
  const at::Tensor chosen = index(queries);
  Places places = resolve_places(context, q.size(2), k.size(2), q.device());
  places.query_positions_bt = places.query_positions_bt.index_select(1, chosen);
  if (places.query_documents_bt.defined())
    places.query_documents_bt = places.query_documents_bt.index_select(1, chosen);
  AttentionTensors rows = tensors;
  if (rows.tau_bt.defined()) rows.tau_bt = rows.tau_bt.index_select(1, chosen);
  const at::Tensor logits = masked_logits(spec, q.index_select(2, chosen), k, rows, places);
  return softmax_rows(logits, tensors.sink_logit_h, false)
      .weights_bhts.index_select(1, index(heads))
      .to(at::kFloat);
}

AttentionStats attention_stats(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                               const AttentionTensors& tensors, const AttentionContext& context) {
  const at::NoGradGuard no_gradient;
  AttentionSpec keys_only = spec;
  keys_only.value_dim = spec.head_dim;
  check_inputs(keys_only, q, k, k, tensors, context);
  const Places places = resolve_places(context, q.size(2), k.size(2), q.device());
  const at::Tensor p =
      softmax_rows(masked_logits(spec, q, k, tensors, places), tensors.sink_logit_h, false)
          .weights_bhts;
  const auto mean = [](const at::Tensor& x_bht) {
    return x_bht.mean(at::IntArrayRef{0, 2}).to(at::kFloat);
  };
  at::Tensor first = (places.key_positions_bs == 0).unsqueeze(1);  // [b or 1, 1, s]
  return {.entropy_h = mean(-at::xlogy(p, p).sum(-1)),
          .largest_weight_h = mean(p.numel() > 0 ? at::amax(p, -1) : p.sum(-1)),
          .sink_mass_h = mean((p * first.unsqueeze(2).to(p.scalar_type())).sum(-1))};
}

}  // namespace fovea
