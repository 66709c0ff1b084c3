// Keys, checks and the two mixes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/talking_heads.h"

#include <ATen/ATen.h>

#include "fovea/attention/call.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/stage_rows.h"
#include "fovea/base/error.h"

namespace fovea {

at::Tensor mix_logits(const at::Tensor& x, const at::Tensor& mix_noi) {
  const int64_t b = x.size(0), n = mix_noi.size(0), m = mix_noi.size(1);
  // One product per group: [m, m] by [m, t s].
  const at::Tensor heads = x.reshape({b, n, m, x.size(2) * x.size(3)});
  return at::matmul(mix_noi.to(x.scalar_type()), heads).view(x.sizes());
}

at::Tensor mix_weights(const at::Tensor& x, const at::Tensor& mix_nio) {
  return mix_logits(x, mix_nio.transpose(1, 2));
}

int64_t HeadMixSpec::width(Kind kind, int64_t heads) const {
  switch (kind) {
    case Kind::none:
      return 0;
    case Kind::full:
      return heads;
    case Kind::groups:
      return group;
  }
  return 0;
}

void HeadMixSpec::describe(FieldVisitor& v) {
  v.choice({"before", "stage 4: mix logits over all heads (full) or inside groups"}, before);
  v.choice({"after", "stage 9: mix weights over all heads (full) or inside groups"}, after);
  v.integer({"group", "groups: ch consecutive heads that mix; divides heads", {0, 1 << 17}}, group);
}

void HeadMixSpec::check(int64_t heads) const {
  const bool grouped = before == Kind::groups || after == Kind::groups;
  require<ConfigError>(!grouped || (group >= 1 && heads % group == 0), kSpecPlace,
                       "head_mix.group must divide heads; got group {} and {} heads", group, heads);
  require<ConfigError>(grouped || group == 0, kSpecPlace,
                       "head_mix.group acts only with head_mix.before or .after: groups; got {}",
                       group);
}

std::span<const std::string_view> enum_names(HeadMixSpec::Kind) {
  static constexpr std::string_view names[] = {"none", "full", "groups"};
  return names;
}

namespace {

using Kind = HeadMixSpec::Kind;

void add_use(StageId stage, Kind kind, const AttentionSpec& spec, std::vector<StageUse>& all) {
  if (kind == Kind::none) return;
  const std::string setting = fmt::format("head mix {}", spec.head_mix.width(kind, spec.heads));
  all.push_back({.stage = stage,
                 .setting = setting,
                 .why_not_sdpa = fmt::format("{} joins rows or heads", setting),
                 .why_not_kernels = fmt::format("no pointwise kernel for {}", setting)});
}

std::vector<StageUse> talking_heads_uses(const AttentionSpec& spec) {
  std::vector<StageUse> all;
  add_use(StageId::mix_before, spec.head_mix.before, spec, all);
  add_use(StageId::mix_after, spec.head_mix.after, spec, all);
  return all;
}

constexpr StageFormula kTalkingHeadsFormulas[] = {
    {.stage = StageId::mix_before,
     .apply =
         [](const at::Tensor& logits, const StageRows& rows) {
           const bool mixes = rows.call.spec.head_mix.before != Kind::none;
           return mixes ? mix_logits(logits, rows.call.tensors.mix_before_noi) : logits;
         }},
    {.stage = StageId::mix_after,
     .apply =
         [](const at::Tensor& weights, const StageRows& rows) {
           const bool mixes = rows.call.spec.head_mix.after != Kind::none;
           return mixes ? mix_weights(weights, rows.call.tensors.mix_after_nio) : weights;
         }},
};

Sizes mix_sizes(Kind kind, const AttentionSpec& spec) {
  if (kind == Kind::none) return std::nullopt;
  const int64_t m = spec.head_mix.width(kind, spec.heads);
  return std::vector{spec.heads / m, m, m};
}

constexpr TensorSlot kTalkingHeadsTensors[] = {
    {.name = "mix_before",
     .member = &AttentionTensors::mix_before_noi,
     .sizes = [](const AttentionSpec& spec,
                 const CallShape&) { return mix_sizes(spec.head_mix.before, spec); },
     .setting =
         [](const AttentionSpec& spec) {
           return fmt::format("head mixing {}", enum_name(spec.head_mix.before));
         }},
    {.name = "mix_after",
     .member = &AttentionTensors::mix_after_nio,
     .sizes = [](const AttentionSpec& spec,
                 const CallShape&) { return mix_sizes(spec.head_mix.after, spec); },
     .setting =
         [](const AttentionSpec& spec) {
           return fmt::format("head mixing {}", enum_name(spec.head_mix.after));
         }},
};

constexpr MechanismSetting kTalkingHeadsSettings[] = {
    {"head mixing",
     [](AttentionSpec& s) {
       s.head_mix = {Kind::full, Kind::full, 0};
     }},
};

}  // namespace

const Mechanism& head_mix_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "head_mix",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.nested({"head_mix", "stages 4 and 9: head mixing (spec 2, 3)"}, spec.head_mix);
          },
      .check = [](const AttentionSpec& spec) { spec.head_mix.check(spec.heads); },
      .uses = talking_heads_uses,
      .formulas = kTalkingHeadsFormulas,
      .tensors = kTalkingHeadsTensors,
      .token = TokenForm::kernels,
      .settings = kTalkingHeadsSettings,
      .remove = [](AttentionSpec& spec) { spec.head_mix = {}; },
  };
  return mechanism;
}

}  // namespace fovea
