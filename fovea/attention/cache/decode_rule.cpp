// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cache/decode_rule.h"

#include <fmt/format.h>

#include "fovea/attention/mechanism.h"
#include "fovea/attention/positions/bias.h"
#include "fovea/kernels/cpu/pointwise/attention.h"

namespace fovea {

std::optional<std::string> why_not_decode_rule(const AttentionSpec& spec) {
  if (auto why = why_not_fused_decoder(spec)) return why;
  if (spec.value_width() != spec.head_dim) return "values of another width than keys";
  const kernels::AttentionSizes sizes{.heads = spec.heads, .kv_heads = spec.kv_heads, .queries = 1};
  if (!kernels::prefers_decode(sizes))
    return fmt::format("{} query heads a key head", spec.heads / spec.kv_heads);
  return kernels::why_not_attention_kernels(spec.head_dim, spec.head_dim);
}

DecodeBias decode_bias(const AttentionSpec& spec, const at::Tensor& bias_table) {
  DecodeBias bias;
  if (spec.bias.kind == BiasSpec::Kind::alibi) {
    const std::vector<double> slopes = alibi_slopes(spec.heads);
    bias.alibi.assign(slopes.begin(), slopes.end());
  }
  if (spec.bias.kind == BiasSpec::Kind::t5) bias.bias_hn = bias_by_distance(spec, bias_table);
  return bias;
}

kernels::ScoreParameters decode_rule(const AttentionSpec& spec, const DecodeBias& bias,
                                     const at::Tensor& sink_logit_h) {
  kernels::ScoreParameters rule{.scale = static_cast<float>(spec.logit_scale()),
                                .soft_cap = static_cast<float>(spec.soft_cap)};
  if (!bias.alibi.empty()) rule.alibi = bias.alibi.data();
  if (bias.bias_hn.defined() && bias.bias_hn.numel() > 0) {
    rule.distance_bias = bias.bias_hn.const_data_ptr<float>();
    rule.bias_count = bias.bias_hn.size(1);
  }
  if (sink_logit_h.defined()) rule.sink_logit = sink_logit_h.const_data_ptr<float>();
  return rule;
}

}  // namespace fovea
