// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/refusals.h"

#include <fmt/format.h>

#include "fovea/attention/mechanism.h"
#include "fovea/attention/mechanisms/longformer_rule.h"

namespace fovea {
namespace {

using Sparsity = MaskRule::Sparsity;
using Spec = AttentionSpec;

constexpr std::string_view kTwoRules = "two rules for distant pairs";
constexpr std::string_view kWhichMap = "which map would it act on?";
constexpr std::string_view kSeesOthers = "each head sees other pairs";
constexpr std::string_view kReadsOthers = "each head reads other keys";
constexpr std::string_view kNeighbours =
    "neighbours of the border between start and recent keys change with every token";
constexpr std::string_view kPlainWindows =
    "a convolution runs over windows without dilation, globals that come first and no projections";
constexpr std::string_view kChoosesAlone = "the choice of keys knows q.k alone";
constexpr std::string_view kSums = "sums of features take the place of pairs of tokens";
constexpr std::string_view kForgets = "a sum of features forgets no single key";
constexpr std::string_view kLater = "a rule for distant keys says nothing about later ones";
constexpr std::string_view kCausal = "set mask.causal: true";
constexpr std::string_view kOne = "remove one of them";

// The setting's name where it acts, else "".
using Setting = std::string_view (*)(const Spec& spec);

// The mechanism with a rule for distant keys that is neither groups nor sums: these have rows of
// their own.
std::string_view key_rule_of_pairs(const Spec& spec) {
  for (const Mechanism* mechanism : mechanisms()) {
    if (mechanism->key_rule == nullptr) continue;
    const std::optional<KeyRule> rule = mechanism->key_rule(spec);
    if (rule && *rule != KeyRule::groups && *rule != KeyRule::sums) return mechanism->name;
  }
  return "";
}

std::string_view selector(const Spec& spec) {
  return key_rule(spec) == KeyRule::selected ? key_rule_of_pairs(spec) : "";
}

std::string_view not_causal(const Spec& s) { return s.mask.causal ? "" : "mask.causal false"; }
std::string_view masked(const Spec& s) {
  const MaskRule causal{.causal = s.mask.causal};
  return s.mask == causal ? "" : "mask.window, mask.sinks or mask.sparsity";
}
std::string_view window(const Spec& s) { return s.mask.window > 0 ? "mask.window" : ""; }
std::string_view sparse(const Spec& s) {
  return s.mask.sparsity == Sparsity::full      ? ""
         : s.mask.sparsity == Sparsity::strided ? "mask.sparsity strided"
                                                : "mask.sparsity fixed";
}
std::string_view fixed(const Spec& s) {
  return s.mask.sparsity == Sparsity::fixed ? sparse(s) : "";
}
std::string_view soft_cap(const Spec& s) { return s.soft_cap > 0.0 ? "soft_cap" : ""; }
std::string_view multi_token(const Spec& s) {
  return s.multi_token == MultiTokenSpec{} ? "" : "multi_token";
}
std::string_view head_mix(const Spec& s) { return s.head_mix == HeadMixSpec{} ? "" : "head_mix"; }
std::string_view own(const Spec& s) { return s.own.active() ? "own.name" : ""; }
std::string_view focus(const Spec& s) { return s.focus.active() ? "focus" : ""; }
std::string_view routing(const Spec& s) { return s.routing.active() ? "routing" : ""; }
std::string_view streaming(const Spec& s) { return s.streaming.active() ? "streaming" : ""; }
std::string_view longformer_without_mask_rule(const Spec& s) {
  return s.longformer.active() && !mask_rule_of(s.longformer) ? "longformer" : "";
}
std::string_view longformer_by_head(const Spec& s) {
  return s.longformer.projections || !one_dilation(s.longformer) ? "longformer" : "";
}
std::string_view bias(const Spec& s) { return s.bias.kind == BiasSpec::Kind::none ? "" : "bias"; }
std::string_view alibi(const Spec& s) {
  return s.bias.kind == BiasSpec::Kind::alibi ? "bias.kind alibi" : "";
}
std::string_view performer(const Spec& s) { return s.performer.active() ? "performer" : ""; }
std::string_view sink_logit(const Spec& s) { return s.sink_logit ? "sink_logit" : ""; }
std::string_view dropout(const Spec& s) { return s.dropout > 0.0 ? "dropout" : ""; }
std::string_view differential(const Spec& s) { return s.differential ? "differential" : ""; }

struct Row {
  Setting setting, other;
  std::string_view reason, remedy = kOne;
};

// clang-format off
constexpr Row kRows[] = {
    {key_rule_of_pairs, not_causal, kLater, kCausal},
    {key_rule_of_pairs, masked, kTwoRules},
    {key_rule_of_pairs, focus, kTwoRules},
    {focus, not_causal, "local pairs are the ones just before a query", kCausal},
    {focus, sparse, kTwoRules},
    {routing, differential, kSeesOthers},
    {routing, multi_token, kSeesOthers},
    {routing, head_mix, kSeesOthers},
    {streaming, multi_token, kNeighbours},
    {longformer_without_mask_rule, multi_token, kPlainWindows},
    {longformer_by_head, differential, kSeesOthers},
    {longformer_by_head, head_mix, kSeesOthers},
    {selector, differential, kReadsOthers},
    {selector, multi_token, kReadsOthers},
    {selector, head_mix, kReadsOthers},
    {selector, soft_cap, kChoosesAlone},
    {selector, bias, kChoosesAlone},
    {selector, sink_logit, kChoosesAlone},
    {selector, own, kChoosesAlone},
    {performer, not_causal, "a running sum has no later keys", kCausal},
    {performer, masked, kForgets},
    {performer, soft_cap, kSums},
    {performer, multi_token, kSums},
    {performer, head_mix, kSums},
    {performer, own, kSums},
    {performer, focus, kSums},
    {performer, bias, kSums},
    {performer, sink_logit, kSums},
    {performer, dropout, kSums},
    {performer, differential, kSums},
    {alibi, not_causal, "its slopes count backwards in time", kCausal},
    {window, fixed, "its blocks are the local part"},
    {differential, multi_token, kWhichMap},
    {differential, head_mix, kWhichMap},
    {differential, own, kWhichMap},
};
// clang-format on

std::optional<Refusal> two_key_rules(const Spec& spec) {
  std::string_view first;
  for (const Mechanism* mechanism : mechanisms()) {
    if (mechanism->key_rule == nullptr || !mechanism->key_rule(spec)) continue;
    if (!first.empty()) return Refusal{first, mechanism->name, kTwoRules, kOne};
    first = mechanism->name;
  }
  return std::nullopt;
}

}  // namespace

std::string Refusal::message() const {
  return fmt::format("{} with {} is not defined ({}); {}", setting, other, reason, remedy);
}

std::optional<Refusal> refusal(const AttentionSpec& spec) {
  if (auto two = two_key_rules(spec)) return two;
  // Every call of attention() comes here: a setting of several rows is asked once.
  Setting asked = nullptr;
  std::string_view setting;
  for (const Row& row : kRows) {
    if (row.setting != asked) setting = (asked = row.setting)(spec);
    const std::string_view other = setting.empty() ? "" : row.other(spec);
    if (!other.empty()) return Refusal{setting, other, row.reason, row.remedy};
  }
  return std::nullopt;
}

}  // namespace fovea
