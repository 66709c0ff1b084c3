// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cache/decode_rule.h"

#include <fmt/format.h>

#include "fovea/attention/positions/bias.h"
#include "fovea/kernels/cpu/attention.h"

namespace fovea {

std::optional<std::string> why_not_decode_rule(const AttentionSpec& spec) {
  if (spec.differential) return "differential attention";
  if (const FocusSpec& focus = spec.focus; focus.active()) {
    if (focus.gate != FocusSpec::Gate::hard) return fmt::format("focus {}", enum_name(focus.gate));
    if (focus.assignment == FocusSpec::Assignment::sinkhorn &&
        focus.potentials != FocusSpec::Potentials::ema)
      return fmt::format("focus.potentials {}", enum_name(focus.potentials));
    if (spec.mask != MaskRule{}) return "focus with a mask";
    if (spec.bias.kind != BiasSpec::Kind::none) return "focus with a position bias";
  }
  if (spec.routing.active()) return "routing";
  if (spec.blocks.active()) return "given pairs of blocks";
  if (spec.own.active()) return fmt::format("the stage '{}'", spec.own.name);
  if (spec.multi_token.before.active() || spec.multi_token.after.active()) return "convolutions";
  if (spec.head_mix.before != HeadMixSpec::Kind::none ||
      spec.head_mix.after != HeadMixSpec::Kind::none)
    return "head mixing";
  if (spec.head_output.active()) return "head_output";
  if (spec.temperature.kind == TemperatureSpec::Kind::learned &&
      spec.temperature.form == TemperatureSpec::Form::sequence)
    return "temperature.form sequence";
  if (spec.mask.sparsity != MaskRule::Sparsity::full) return "a sparse mask";
  if (spec.mask.window > 0 && spec.mask.sinks > 0) return "sinks before a window";
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
