// The stage table.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/stages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "fovea/attention/mechanism.h"

namespace fovea {
namespace {

constexpr Stage kStages[] = {
    {StageId::keys, "keys", "k_i = a1 k_i + a2 k_{i-1}, v_i = b1 v_i + b2 v_{i-1}"},
    {StageId::scale, "scale", "s = q.k / (t sqrt(d)), or q.k / tau_i"},
    {StageId::soft_cap, "soft_cap", "s = c tanh(s / c)"},
    {StageId::convolution_before, "convolution_before", "s = K * Mask0(s) over queries and keys"},
    {StageId::mix_before, "mix_before", "s_o = sum_h W_oh s_h"},
    {StageId::gate_and_bias, "gate_and_bias",
     "a stage of your own; s = s + gate (or s times it); s = s + bias (alibi -m_h (i - j), t5 "
     "table)"},
    {StageId::allowed, "allowed", "s = -inf where allowed(i, j) is false"},
    {StageId::softmax, "softmax", "P = exp(s - lse), lse over the keys (and the sink logit)"},
    {StageId::convolution_after, "convolution_after", "P = Mask0(K * Mask0(P))"},
    {StageId::mix_after, "mix_after", "P_o = sum_c P_c W_co"},
    {StageId::values, "values",
     "o_i = sum_j dropout(P_ij) v_j, then head norm, depth factor and head gate"},
};

}  // namespace

std::span<const Stage> attention_stages() { return kStages; }

const Stage& stage_of(StageId id) { return kStages[static_cast<size_t>(id)]; }

std::vector<std::string> Stage::active(const AttentionSpec& spec) const {
  std::vector<std::string> settings;
  for (StageUse& use : stage_uses(spec))
    if (use.stage == id) settings.push_back(std::move(use.setting));
  return settings;
}

std::string describe_pipeline(const AttentionSpec& spec) {
  std::vector<std::string> all;
  for (const Stage& stage : kStages)
    for (std::string& setting : stage.active(spec)) all.push_back(std::move(setting));
  return all.empty() ? "plain" : fmt::format("{}", fmt::join(all, " > "));
}

}  // namespace fovea
