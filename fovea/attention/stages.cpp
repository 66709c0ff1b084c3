// The stage table.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/stages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace fovea {
namespace {

using Settings = std::vector<std::string>;

using WhyNot = std::optional<std::string>;

WhyNot within_sdpa(const AttentionSpec&) { return std::nullopt; }

Settings scale_settings(const AttentionSpec& spec) {
  const TemperatureSpec& t = spec.temperature;
  if (t.kind == TemperatureSpec::Kind::learned) {
    return {fmt::format("temperature learned {} {}", enum_name(t.form), enum_name(t.bound))};
  }
  Settings active;
  if (spec.scale > 0.0) active.push_back(fmt::format("scale {}", spec.scale));
  if (t.value != 1.0) active.push_back(fmt::format("temperature {}", t.value));
  return active;
}

Settings soft_cap_settings(const AttentionSpec& spec) {
  return spec.soft_cap > 0.0 ? Settings{fmt::format("soft_cap {}", spec.soft_cap)} : Settings{};
}

WhyNot why_not_soft_cap(const AttentionSpec& spec) {
  if (spec.soft_cap > 0.0) return "soft_cap bends the logits before the softmax";
  return std::nullopt;
}

Settings extent_settings(const KernelExtent& extent, const MultiTokenSpec& spec) {
  if (!extent.active()) return {};
  std::string text = fmt::format("convolution {} x {}", extent.queries, extent.keys);
  if (spec.equation != MultiTokenSpec::Equation::eq5)
    text += fmt::format(" {}", enum_name(spec.equation));
  return {text};
}

Settings convolution_before_settings(const AttentionSpec& spec) {
  return extent_settings(spec.multi_token.before, spec.multi_token);
}

Settings convolution_after_settings(const AttentionSpec& spec) {
  Settings active = extent_settings(spec.multi_token.after, spec.multi_token);
  if (spec.multi_token.renormalise) active.push_back("renormalise");
  return active;
}

Settings mix_settings(HeadMixSpec::Kind kind, const AttentionSpec& spec) {
  if (kind == HeadMixSpec::Kind::none) return {};
  return {fmt::format("head mix {}", spec.head_mix.width(kind, spec.heads))};
}

Settings mix_before_settings(const AttentionSpec& spec) {
  return mix_settings(spec.head_mix.before, spec);
}

Settings mix_after_settings(const AttentionSpec& spec) {
  return mix_settings(spec.head_mix.after, spec);
}

// A reason where a stage acts that joins pairs, which a kernel of single rows and heads cannot.
template <Settings (*active)(const AttentionSpec&)>
WhyNot why_not_joining(const AttentionSpec& spec) {
  const Settings settings = active(spec);
  if (settings.empty()) return std::nullopt;
  return fmt::format("{} joins rows or heads", settings.front());
}

Settings value_settings(const AttentionSpec& spec) {
  Settings active;
  if (spec.dropout > 0.0) active.push_back(fmt::format("dropout {}", spec.dropout));
  if (spec.differential)
    active.push_back(fmt::format("differential {:.4g}", lambda_init(spec.depth)));
  const HeadOutputSpec& o = spec.head_output;
  if (o.norm != HeadOutputSpec::Norm::none) active.push_back("head norm");
  if (o.depth_scale != HeadOutputSpec::DepthScale::none)
    active.push_back(
        fmt::format("depth scale {} {:.4g}", enum_name(o.depth_scale), o.factor(spec.depth)));
  if (o.gate != HeadOutputSpec::Gate::none)
    active.push_back(fmt::format("head gate {}", enum_name(o.gate)));
  return active;
}

Settings bias_settings(const AttentionSpec& spec) {
  Settings active;
  if (spec.own.active()) active.push_back(fmt::format("own {}", spec.own.name));
  const FocusSpec& f = spec.focus;
  if (f.reads_groups())
    active.push_back(fmt::format("focus {} of {} groups, window {}, sinks {}", enum_name(f.gate),
                                 f.groups, f.window, f.sinks));
  if (spec.bias.kind != BiasSpec::Kind::none)
    active.push_back(std::string(enum_name(spec.bias.kind)));
  return active;
}

WhyNot why_not_bias(const AttentionSpec& spec) {
  if (spec.own.active()) return fmt::format("'{}' is a stage of one's own", spec.own.name);
  if (spec.focus.reads_groups()) return "the gate of focus learns";
  if (spec.bias.kind == BiasSpec::Kind::t5) return "the t5 table is a parameter";
  return std::nullopt;
}

Settings mask_settings(const AttentionSpec& spec) {
  Settings active;
  const MaskRule& m = spec.mask;
  if (m.sparsity == MaskRule::Sparsity::strided)
    active.push_back(fmt::format("strided {}", m.stride));
  if (m.sparsity == MaskRule::Sparsity::fixed)
    active.push_back(fmt::format("fixed {} {}", m.block, m.summary));
  if (m.window > 0) active.push_back(fmt::format("window {}", m.window));
  if (m.sinks > 0) active.push_back(fmt::format("sinks {}", m.sinks));
  if (!m.causal) active.push_back("not causal");
  if (const FocusSpec& f = spec.focus; f.gate == FocusSpec::Gate::hard)
    active.push_back(fmt::format("focus top {} of {} groups, window {}, sinks {}", f.top_k,
                                 f.groups, f.window, f.sinks));
  if (const RoutingSpec& r = spec.routing; r.active())
    active.push_back(
        fmt::format("routing {} {} of {} clusters", enum_name(r.choice), r.keep, r.clusters));
  if (const BlockPairsSpec& b = spec.blocks; b.active())
    active.push_back(fmt::format("{} pairs of blocks of {}", b.pairs.size() / 2, b.size));
  return active;
}

WhyNot why_not_mask(const AttentionSpec& spec) {
  if (spec.routing.active()) return "the clusters of routing are of this layer alone";
  if (spec.blocks.active()) return "given pairs of blocks are no mask of torch's";
  if (spec.focus.gate == FocusSpec::Gate::hard)
    return "the groups of focus are of this layer alone";
  return std::nullopt;
}

Settings softmax_settings(const AttentionSpec& spec) {
  Settings active;
  if (spec.sink_logit) active.push_back("sink_logit");
  return active;
}

constexpr Stage kStages[] = {
    {StageId::scale, "scale", "s = q.k / (t sqrt(d)), or q.k / tau_i", scale_settings, within_sdpa},
    {StageId::soft_cap, "soft_cap", "s = c tanh(s / c)", soft_cap_settings, why_not_soft_cap},
    {StageId::convolution_before, "convolution_before", "s = K * Mask0(s) over queries and keys",
     convolution_before_settings, why_not_joining<convolution_before_settings>, true},
    {StageId::mix_before, "mix_before", "s_o = sum_h W_oh s_h", mix_before_settings,
     why_not_joining<mix_before_settings>, true},
    {StageId::gate_and_bias, "gate_and_bias",
     "a stage of your own; s = s + gate (or s times it); s = s + bias (alibi -m_h (i - j), t5 "
     "table)",
     bias_settings, why_not_bias},
    {StageId::allowed, "allowed", "s = -inf where allowed(i, j) is false", mask_settings,
     why_not_mask},
    {StageId::softmax, "softmax", "P = exp(s - lse), lse over the keys (and the sink logit)",
     softmax_settings, within_sdpa},
    {StageId::convolution_after, "convolution_after", "P = Mask0(K * Mask0(P))",
     convolution_after_settings, why_not_joining<convolution_after_settings>, true},
    {StageId::mix_after, "mix_after", "P_o = sum_c P_c W_co", mix_after_settings,
     why_not_joining<mix_after_settings>, true},
    {StageId::values, "values",
     "o_i = sum_j dropout(P_ij) v_j, then head norm, depth factor and head gate", value_settings,
     within_sdpa},
};

}  // namespace

std::span<const Stage> attention_stages() { return kStages; }

std::string describe_pipeline(const AttentionSpec& spec) {
  Settings all;
  for (const Stage& stage : kStages) {
    for (std::string& setting : stage.active(spec)) all.push_back(std::move(setting));
  }
  return all.empty() ? "plain" : fmt::format("{}", fmt::join(all, " > "));
}

std::string stages_markdown() {
  std::string table = "| # | stage | what happens |\n|---|---|---|\n";
  int number = 0;
  for (const Stage& stage : kStages)
    table += fmt::format("| {} | `{}` | `{}` |\n", ++number, stage.name, stage.formula);
  return table;
}

}  // namespace fovea
