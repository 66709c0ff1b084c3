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

Settings no_settings(const AttentionSpec&) { return {}; }
std::string within_sdpa(const AttentionSpec&) { return ""; }

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

std::string soft_cap_beyond(const AttentionSpec& spec) {
  return spec.soft_cap > 0.0 ? "soft_cap bends the logits before the softmax" : "";
}

Settings bias_settings(const AttentionSpec& spec) {
  return spec.bias.kind == BiasSpec::Kind::none ? Settings{}
                                                : Settings{std::string(enum_name(spec.bias.kind))};
}

std::string bias_beyond(const AttentionSpec& spec) {
  return spec.bias.kind == BiasSpec::Kind::t5 ? "the t5 table is a parameter" : "";
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
  return active;
}

Settings softmax_settings(const AttentionSpec& spec) {
  Settings active;
  if (spec.sink_logit) active.push_back("sink_logit");
  if (spec.dropout > 0.0) active.push_back(fmt::format("dropout {}", spec.dropout));
  return active;
}

constexpr Stage kStages[] = {
    {StageId::scale, "scale", "s = q.k / (t sqrt(d)), or q.k / tau_i", scale_settings, within_sdpa},
    {StageId::soft_cap, "soft_cap", "s = c tanh(s / c)", soft_cap_settings, soft_cap_beyond},
    {StageId::convolution_before, "convolution_before", "s = K * Mask0(s) over queries and keys",
     no_settings, within_sdpa},
    {StageId::mix_before, "mix_before", "s_o = sum_h W_oh s_h", no_settings, within_sdpa},
    {StageId::gate_and_bias, "gate_and_bias",
     "s = s + gate, then s = s + bias (alibi -m_h (i - j), t5 table)", bias_settings, bias_beyond},
    {StageId::allowed, "allowed", "s = -inf where allowed(i, j) is false", mask_settings,
     within_sdpa},
    {StageId::softmax, "softmax",
     "P = exp(s - lse), lse over the keys (and the sink logit), then dropout", softmax_settings,
     within_sdpa},
    {StageId::convolution_after, "convolution_after", "P = Mask0(K * Mask0(P))", no_settings,
     within_sdpa},
    {StageId::mix_after, "mix_after", "P_o = sum_c P_c W_co", no_settings, within_sdpa},
    {StageId::values, "values", "o_i = sum_j P_ij v_j, then head norm and head gate", no_settings,
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
