// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/differential.h"

#include <ATen/ATen.h>

#include "fovea/attention/mechanisms/head_output.h"
#include "fovea/attention/pipeline.h"

namespace fovea {

at::Tensor differential_lambda(const AttentionSpec& spec, const AttentionTensors& tensors) {
  const at::Tensor rows = tensors.lambda_4d.to(accumulate_type(tensors.lambda_4d.scalar_type()));
  const auto term = [&](int64_t pair) {
    return at::exp((rows.select(0, 2 * pair) * rows.select(0, 2 * pair + 1)).sum());
  };
  return term(0) - term(1) + lambda_init(spec.depth);
}

AttentionSpec differential_map(const AttentionSpec& spec) {
  AttentionSpec map = spec;
  map.differential = false;
  map.heads = spec.heads / 2;
  map.kv_heads = spec.kv_heads / 2;
  map.value_dim = spec.value_width();
  map.head_output = {};
  return map;
}

at::Tensor map_heads(const at::Tensor& x, int64_t map) {
  return x.unflatten(1, {x.size(1) / 2, 2}).select(2, map);
}

AttentionTensors map_tensors(const AttentionTensors& tensors, int64_t map) {
  AttentionTensors half = tensors;
  half.lambda_4d = half.head_gain_e = half.gate_weight = half.gate_bias = at::Tensor();
  if (half.bias_table.defined()) half.bias_table = map_heads(half.bias_table, map);
  if (half.sink_logit_h.defined())
    half.sink_logit_h = map_heads(half.sink_logit_h.unsqueeze(0), map).squeeze(0);
  return half;
}

AttentionResult differential_attention(const AttentionSpec& spec, const at::Tensor& q,
                                       const at::Tensor& k, const at::Tensor& v,
                                       const AttentionTensors& tensors, const AttentionCall& call) {
  const AttentionSpec inner = differential_map(spec);
  const auto run = [&](int64_t map) {
    return call(inner, map_heads(q, map), map_heads(k, map), v, map_tensors(tensors, map));
  };
  const AttentionResult first = run(0), second = run(1);
  const at::ScalarType wide = accumulate_type(q.scalar_type());
  const at::Tensor lambda = differential_lambda(spec, tensors).to(wide);
  AttentionResult result;
  const at::Tensor difference = first.out_bhte.to(wide) - lambda * second.out_bhte.to(wide);
  result.out_bhte = head_output(spec, difference, tensors).to(q.scalar_type());
  if (first.lse_bht.defined())
    result.lse_bht = at::stack({first.lse_bht, second.lse_bht}, 2).flatten(1, 2);
  const auto both = [](const at::Tensor& a, const at::Tensor& b) {
    return a.defined() ? at::stack({a, b}, 1).flatten() : a;
  };
  const AttentionStats &a = first.stats, &b = second.stats;
  result.stats = {both(a.entropy_h, b.entropy_h), both(a.largest_weight_h, b.largest_weight_h),
                  both(a.sink_mass_h, b.sink_mass_h)};
  result.path = second.path;
  return result;
}

}  // namespace fovea
