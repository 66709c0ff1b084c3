// AttentionSpec: keys, checks and names.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/spec.h"

#include <cmath>

#include "fovea/attention/mechanisms/own_stage.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

constexpr std::string_view kWhere = "attention spec";

// The paper states its bounds for heads of this width (spec 10.2, F-6).
constexpr double kPaperHeadDim = 128.0;

void check_sizes(const AttentionSpec& s) {
  require<ConfigError>(s.heads >= 1, kWhere, "heads must be at least 1; got {}", s.heads);
  require<ConfigError>(s.kv_heads >= 1 && s.heads % s.kv_heads == 0, kWhere,
                       "kv_heads must divide heads; got {} heads and {} kv_heads", s.heads,
                       s.kv_heads);
  require<ConfigError>(s.head_dim >= 1, kWhere, "head_dim must be at least 1; got {}", s.head_dim);
  require<ConfigError>(s.value_dim >= 0, kWhere,
                       "value_dim must be 0 (as head_dim) or larger; got {}", s.value_dim);
}

void check_temperature(const AttentionSpec& s) {
  const TemperatureSpec& t = s.temperature;
  if (t.kind == TemperatureSpec::Kind::constant) {
    require<ConfigError>(std::isfinite(t.value) && t.value > 0.0, kWhere,
                         "temperature.value must be a positive number; got {}", t.value);
    return;
  }
  require<ConfigError>(
      std::isfinite(t.tau_min) && t.tau_min > 0.0 && std::isfinite(t.tau_max), kWhere,
      "temperature.tau_min must be positive, because tau divides the logits; got {}", t.tau_min);
  require<ConfigError>(t.tau_min < t.tau_max, kWhere,
                       "temperature.tau_min must be below temperature.tau_max; got {} and {}",
                       t.tau_min, t.tau_max);
}

void check_bias(const AttentionSpec& s) {
  if (s.bias.kind == BiasSpec::Kind::alibi) {
    require<UnsupportedError>(
        s.mask.causal, kWhere,
        "bias.kind alibi with mask.causal false has no meaning (its slopes count backwards in "
        "time); set mask.causal: true or bias.kind: t5");
  }
  if (s.bias.kind != BiasSpec::Kind::t5) return;
  const int64_t per_direction = s.mask.causal ? s.bias.buckets : s.bias.buckets / 2;
  require<ConfigError>(per_direction >= 2 && per_direction % 2 == 0, kWhere,
                       "bias.buckets must be even (a multiple of 4 without causal); got {}",
                       s.bias.buckets);
  require<ConfigError>(s.bias.max_distance > per_direction / 2, kWhere,
                       "bias.max_distance must exceed the {} exact buckets; got {}",
                       per_direction / 2, s.bias.max_distance);
}

void check_differential(const AttentionSpec& s) {
  if (!s.differential) return;
  require<ConfigError>(s.heads % 2 == 0 && s.kv_heads % 2 == 0, kWhere,
                       "differential needs pairs of query and of key heads; got {} heads and {} "
                       "kv_heads",
                       s.heads, s.kv_heads);
  require<UnsupportedError>(
      s.multi_token == MultiTokenSpec{} && s.head_mix == HeadMixSpec{}, kWhere,
      "differential with multi_token or head_mix is not defined (which map would they join?); "
      "remove one of them");
}

void check_own(const AttentionSpec& s) {
  if (!s.own.active()) {
    require<ConfigError>(s.own.values.empty(), kWhere, "own.values are for own.name; got {} values",
                         s.own.values.size());
    return;
  }
  require<UnsupportedError>(!s.differential, kWhere,
                            "differential with own.name is not defined (which map would it act "
                            "on?); remove one of them");
  const OwnStage& stage = own_stage(s.own.name);
  if (stage.check) stage.check(s);
}

void check_focus(const AttentionSpec& s) {
  s.focus.check();
  if (!s.focus.active()) return;
  require<UnsupportedError>(s.mask.causal, kWhere,
                            "focus with mask.causal false has no meaning (local pairs are the ones "
                            "just before a query); set mask.causal: true");
  require<UnsupportedError>(s.mask.sparsity == MaskRule::Sparsity::full, kWhere,
                            "focus with mask.sparsity {} is not defined (two rules for distant "
                            "pairs); remove one of them",
                            enum_name(s.mask.sparsity));
}

// Rules that say themselves which distant keys are seen.
void check_routing(const AttentionSpec& s) {
  s.routing.check();
  s.blocks.check();
  for (const auto& [name, active] :
       {std::pair{"routing", s.routing.active()}, {"blocks", s.blocks.active()}}) {
    if (!active) continue;
    require<UnsupportedError>(s.mask.causal, kWhere,
                              "{} with mask.causal false is not defined; set mask.causal: true",
                              name);
    require<UnsupportedError>(
        s.mask == MaskRule{}, kWhere,
        "{} with mask.window, mask.sinks or mask.sparsity is not defined (two rules for distant "
        "pairs); remove one of them",
        name);
    require<UnsupportedError>(!s.focus.active(), kWhere,
                              "{} with focus is not defined (two rules for distant pairs); remove "
                              "one of them",
                              name);
  }
  require<UnsupportedError>(!s.routing.active() || !s.blocks.active(), kWhere,
                            "routing with blocks is not defined (two rules for distant pairs); "
                            "remove one of them");
  require<UnsupportedError>(
      !s.routing.active() ||
          (!s.differential && s.multi_token == MultiTokenSpec{} && s.head_mix == HeadMixSpec{}),
      kWhere,
      "routing with differential, multi_token or head_mix is not defined (each head sees other "
      "pairs); remove one of them");
}

void check_mask(const MaskRule& m) {
  require<ConfigError>(m.window >= 0, kWhere, "mask.window must be 0 (none) or larger; got {}",
                       m.window);
  require<ConfigError>(m.sinks >= 0, kWhere, "mask.sinks must be 0 (none) or larger; got {}",
                       m.sinks);
  switch (m.sparsity) {
    case MaskRule::Sparsity::full:
      require<ConfigError>(m.stride == 0 && m.block == 0 && m.summary == 0, kWhere,
                           "mask.stride, mask.block and mask.summary act only with mask.sparsity "
                           "strided or fixed; got "
                           "sparsity full with {}, {}, {}",
                           m.stride, m.block, m.summary);
      break;
    case MaskRule::Sparsity::strided:
      require<ConfigError>(m.stride >= 1, kWhere,
                           "mask.stride must be at least 1 with sparsity strided; got {}",
                           m.stride);
      require<ConfigError>(
          m.block == 0 && m.summary == 0, kWhere,
          "mask.block and mask.summary belong to sparsity fixed; got {} and {} with strided",
          m.block, m.summary);
      break;
    case MaskRule::Sparsity::fixed:
      require<ConfigError>(m.block >= 1, kWhere,
                           "mask.block must be at least 1 with sparsity fixed; got {}", m.block);
      require<ConfigError>(m.summary >= 0 && m.summary <= m.block, kWhere,
                           "mask.summary must be between 0 and mask.block; got {} of {}", m.summary,
                           m.block);
      require<ConfigError>(m.stride == 0, kWhere,
                           "mask.stride belongs to sparsity strided; got {} with fixed", m.stride);
      require<UnsupportedError>(
          m.window == 0, kWhere,
          "mask.window with mask.sparsity fixed is not defined (its blocks are the local part); "
          "remove one; got window {}",
          m.window);
      break;
  }
}

}  // namespace

void TemperatureSpec::describe(FieldVisitor& v) {
  v.choice({"kind",
            "constant: logits q.k/(t sqrt d); learned: q.k/tau_i from the layer's input (spec 10)"},
           kind);
  v.real({"value", "t of kind constant; 1 = standard attention, 0.4 = the Focal paper's best",
          ranges::kPositive},
         value);
  v.choice({"form", "learned: sequence (leaks the future, F-1), prefix, token, global"}, form);
  v.choice({"bound", "learned: clip (no gradient outside), sigmoid, straight_through (F-3)"},
           bound);
  v.real({"tau_min", "learned: lower bound for head width 128", ranges::kPositive}, tau_min);
  v.real({"tau_max", "learned: upper bound for head width 128", ranges::kPositive}, tau_max);
  v.boolean({"scale_bounds", "learned: multiply the bounds by sqrt(d/128) (F-6)"}, scale_bounds);
}

double TemperatureSpec::low(int64_t d) const {
  return tau_min * (scale_bounds ? std::sqrt(static_cast<double>(d) / kPaperHeadDim) : 1.0);
}

double TemperatureSpec::high(int64_t d) const {
  return tau_max * (scale_bounds ? std::sqrt(static_cast<double>(d) / kPaperHeadDim) : 1.0);
}

void BiasSpec::describe(FieldVisitor& v) {
  v.choice({"kind", "additive position bias: none, alibi (spec 6.4), t5 (spec 6.3)"}, kind);
  v.integer({"buckets", "t5: rows of the table", {1, 1 << 20}}, buckets);
  v.integer({"max_distance",
             "t5: distances from here on share the last bucket",
             {1, ranges::kMostPositions}},
            max_distance);
}

void OwnStageSpec::describe(FieldVisitor& v) {
  v.text({"name", "a stage that this program registered (docs/adding-a-mechanism.md); '' = none"},
         name);
  v.reals({"values", "numbers that it reads", ranges::kAnySign}, values);
}

void describe_mask(MaskRule& rule, FieldVisitor& v) {
  v.boolean({"causal", "a query sees keys at its own position and before"}, rule.causal);
  v.integer({"window", "W: keys with i - j < W, self included; 0 = no window (spec 7.5)",
             ranges::kPositionCounts},
            rule.window);
  v.integer({"sinks", "the first positions of a document stay visible", ranges::kPositionCounts},
            rule.sinks);
  v.choice({"sparsity", "full, strided or fixed (spec 4.7)"}, rule.sparsity);
  v.integer({"stride", "strided: also keys with (i - j) mod stride = 0", ranges::kPositionCounts},
            rule.stride);
  v.integer({"block", "fixed: keys of the same block", ranges::kPositionCounts}, rule.block);
  v.integer({"summary", "fixed: also the last `summary` positions of every block",
             ranges::kPositionCounts},
            rule.summary);
}

void AttentionSpec::describe(FieldVisitor& v) {
  v.integer({"heads", "query heads H", {1, 1 << 17}}, heads);
  v.integer({"kv_heads", "key/value heads, a divisor of heads (GQA, MQA)", {1, 1 << 17}}, kv_heads);
  v.integer({"head_dim", "width d of queries and keys", {1, 1 << 16}}, head_dim);
  v.integer({"value_dim", "width of values; 0 = head_dim", {0, 1 << 16}}, value_dim);
  v.real({"scale", "replaces 1/sqrt(d) when > 0", ranges::kNotNegative}, scale);
  v.nested({"temperature", "stage 1: Focal temperature"}, temperature);
  v.real({"soft_cap", "stage 2: c of c tanh(s/c); 0 = off", ranges::kNotNegative}, soft_cap);
  v.nested({"multi_token", "stages 3 and 8: key-query convolution (spec 3)"}, multi_token);
  v.nested({"head_mix", "stages 4 and 9: head mixing (spec 2, 3)"}, head_mix);
  v.nested({"own", "stage 5: a stage of your own, before gate and bias"}, own);
  v.nested({"focus", "stages 5 and 6: Focus, learned groups of tokens (spec 11)"}, focus);
  v.nested({"routing", "stage 6: keys of the query's own cluster (spec 4.3)"}, routing);
  v.nested({"blocks", "stage 6: given pairs of blocks of positions"}, blocks);
  v.nested({"bias", "stage 5: additive position bias"}, bias);
  v.group({"mask", "stage 6: which keys a query may see"},
          [this](FieldVisitor& m) { describe_mask(mask, m); });
  v.boolean(
      {"sink_logit", "stage 7: a learned logit per head joins the softmax with value 0 (spec 7.5)"},
      sink_logit);
  v.real({"dropout", "probability of dropping an attention weight in training", ranges::kBelowOne},
         dropout);
  v.boolean(
      {"differential", "pairs of query and key heads are two maps; one minus lambda the other"},
      differential);
  v.nested({"head_output", "stage 10: norm, depth constant and gate of each head"}, head_output);
  v.integer({"depth", "index of the layer from 0, for lambda_init and head_output.depth_scale",
             ranges::kLayerIndices},
            depth);
}

void AttentionSpec::check() const {
  check_sizes(*this);
  require<ConfigError>(std::isfinite(scale) && scale >= 0.0, kWhere,
                       "scale must be 0 (1/sqrt(head_dim)) or positive; got {}", scale);
  check_temperature(*this);
  require<ConfigError>(std::isfinite(soft_cap) && soft_cap >= 0.0, kWhere,
                       "soft_cap must be 0 (off) or positive; got {}", soft_cap);
  check_mask(mask);
  check_focus(*this);
  check_routing(*this);
  check_bias(*this);
  multi_token.check();
  head_mix.check(heads);
  head_output.check();
  check_differential(*this);
  check_own(*this);
  require<ConfigError>(depth >= 0, kWhere, "depth must be 0 or larger; got {}", depth);
  require<ConfigError>(dropout >= 0.0 && dropout < 1.0, kWhere, "dropout must be in [0, 1); got {}",
                       dropout);
}

double AttentionSpec::logit_scale() const {
  const double base = scale > 0.0 ? scale : 1.0 / std::sqrt(static_cast<double>(head_dim));
  return base / temperature.value;
}

std::span<const std::string_view> enum_names(TemperatureSpec::Kind) {
  static constexpr std::string_view names[] = {"constant", "learned"};
  return names;
}
std::span<const std::string_view> enum_names(TemperatureSpec::Form) {
  static constexpr std::string_view names[] = {"sequence", "prefix", "token", "global"};
  return names;
}
std::span<const std::string_view> enum_names(TemperatureSpec::Bound) {
  static constexpr std::string_view names[] = {"clip", "sigmoid", "straight_through"};
  return names;
}
std::span<const std::string_view> enum_names(BiasSpec::Kind) {
  static constexpr std::string_view names[] = {"none", "alibi", "t5"};
  return names;
}
std::span<const std::string_view> enum_names(MaskRule::Sparsity) {
  static constexpr std::string_view names[] = {"full", "strided", "fixed"};
  return names;
}

}  // namespace fovea
