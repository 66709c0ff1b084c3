// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/fused_call.h"

#include "fovea/attention/pipeline.h"

namespace fovea {
namespace {

const float* floats(const at::Tensor& x) {
  return x.defined() && x.numel() > 0 ? x.const_data_ptr<float>() : nullptr;
}

// The bucket of every entry of the bias by distance: entry 0 is distance 0 (causal) or
// -max_distance.
at::Tensor buckets_by_distance(const AttentionSpec& spec) {
  const int64_t last = spec.bias.max_distance, first = spec.mask.causal ? 0 : -last;
  return t5_buckets(at::arange(first, last + 1, at::kLong), spec.bias.buckets, last,
                    spec.mask.causal);
}

// The T5 table by distance [h, n]. Differentiable.
at::Tensor bias_by_distance(const AttentionSpec& spec, const at::Tensor& table) {
  return table.to(at::kFloat).index_select(0, buckets_by_distance(spec)).t().contiguous();
}

}  // namespace

c10::intrusive_ptr<FusedCall> fused_call(const AttentionSpec& spec,
                                         std::shared_ptr<const VisitPlan> plan,
                                         const AttentionContext& context) {
  auto call = c10::make_intrusive<FusedCall>();
  call->plan = std::move(plan);
  call->want_stats = context.want_stats;
  call->rule.scale = static_cast<float>(spec.logit_scale());
  call->rule.soft_cap = static_cast<float>(spec.soft_cap);
  if (spec.bias.kind == BiasSpec::Kind::t5 && !spec.mask.causal)
    call->rule.bias_first = -spec.bias.max_distance;
  if (spec.bias.kind == BiasSpec::Kind::alibi) {
    const std::vector<double> slopes = alibi_slopes(spec.heads);
    call->alibi.assign(slopes.begin(), slopes.end());
  }
  if (context.training) {
    call->rule.dropout = static_cast<float>(spec.dropout);
    call->rule.dropout_seed = context.dropout_seed;
    call->rule.dropout_layer = static_cast<uint32_t>(context.layer);
  }
  return call;
}

FusedOperands fused_operands(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, const AttentionTensors& tensors) {
  const bool half = q.scalar_type() == at::kHalf;
  const auto widened = [half](const at::Tensor& x) { return half ? x.to(at::kFloat) : x; };
  const at::Tensor none = at::empty({0}, q.options().dtype(at::kFloat));
  const auto row_floats = [&none](const at::Tensor& x) {
    return x.defined() ? x.to(at::kFloat).contiguous() : none;
  };
  return {widened(q),
          widened(k),
          widened(v),
          row_floats(tensors.tau_bt),
          tensors.bias_table.defined() ? bias_by_distance(spec, tensors.bias_table) : none,
          row_floats(tensors.sink_logit_h)};
}

kernels::LogitRule rule_of(const FusedCall& call, const FusedOperands& x) {
  kernels::LogitRule rule = call.rule;
  rule.tau = floats(x.tau_bt);
  rule.distance_bias = floats(x.bias_hn);
  rule.bias_count = x.bias_hn.defined() && x.bias_hn.numel() > 0 ? x.bias_hn.size(1) : 0;
  rule.sink_logit = floats(x.sink_h);
  rule.alibi = call.alibi.empty() ? nullptr : call.alibi.data();
  return rule;
}

kernels::AttentionSizes sizes_of(const FusedOperands& x) {
  return {.batch = x.q.size(0),
          .heads = x.q.size(1),
          .kv_heads = x.k.size(1),
          .queries = x.q.size(2),
          .keys = x.k.size(2),
          .head_dim = x.q.size(3),
          .value_dim = x.v.size(3)};
}

at::Tensor bias_table_gradient(const AttentionSpec& spec, const at::Tensor& dbias_hn) {
  return at::zeros({spec.bias.buckets, dbias_hn.size(0)}, dbias_hn.options())
      .index_add(0, buckets_by_distance(spec), dbias_hn.t());
}

std::string kernel_isa(at::ScalarType dtype) {
  return std::string(dtype == at::kBFloat16 ? kernels::attention_isa<BFloat16>()
                                            : kernels::attention_isa<float>());
}

}  // namespace fovea
