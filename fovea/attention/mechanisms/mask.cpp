// Keys and checks of the mask rule.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/mask.h"

#include <fmt/format.h>

#include "fovea/attention/mechanism.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

void check_mask(const AttentionSpec& spec) {
  const MaskRule& m = spec.mask;
  require<ConfigError>(m.window >= 0, kSpecPlace, "mask.window must be 0 (none) or larger; got {}",
                       m.window);
  require<ConfigError>(m.sinks >= 0, kSpecPlace, "mask.sinks must be 0 (none) or larger; got {}",
                       m.sinks);
  switch (m.sparsity) {
    case MaskRule::Sparsity::full:
      require<ConfigError>(m.stride == 0 && m.block == 0 && m.summary == 0, kSpecPlace,
                           "mask.stride, mask.block and mask.summary act only with mask.sparsity "
                           "strided or fixed; got "
                           "sparsity full with {}, {}, {}",
                           m.stride, m.block, m.summary);
      break;
    case MaskRule::Sparsity::strided:
      require<ConfigError>(m.stride >= 1, kSpecPlace,
                           "mask.stride must be at least 1 with sparsity strided; got {}",
                           m.stride);
      require<ConfigError>(
          m.block == 0 && m.summary == 0, kSpecPlace,
          "mask.block and mask.summary belong to sparsity fixed; got {} and {} with strided",
          m.block, m.summary);
      break;
    case MaskRule::Sparsity::fixed:
      require<ConfigError>(m.block >= 1, kSpecPlace,
                           "mask.block must be at least 1 with sparsity fixed; got {}", m.block);
      require<ConfigError>(m.summary >= 0 && m.summary <= m.block, kSpecPlace,
                           "mask.summary must be between 0 and mask.block; got {} of {}", m.summary,
                           m.block);
      require<ConfigError>(m.stride == 0, kSpecPlace,
                           "mask.stride belongs to sparsity strided; got {} with fixed", m.stride);
      break;
  }
}

std::vector<StageUse> mask_uses(const AttentionSpec& spec) {
  const MaskRule& m = spec.mask;
  std::vector<StageUse> all;
  const auto add = [&all](std::string setting) {
    all.push_back({.stage = StageId::allowed, .setting = std::move(setting)});
  };
  if (m.sparsity == MaskRule::Sparsity::strided) add(fmt::format("strided {}", m.stride));
  if (m.sparsity == MaskRule::Sparsity::fixed) add(fmt::format("fixed {} {}", m.block, m.summary));
  if (m.window > 0) add(fmt::format("window {}", m.window));
  if (m.sinks > 0) add(fmt::format("sinks {}", m.sinks));
  if (!m.causal) add("not causal");
  return all;
}

TokenUse token_mask(const AttentionSpec& spec) {
  if (spec.mask.sparsity != MaskRule::Sparsity::full)
    return {TokenForm::operations, "a sparse mask"};
  const bool first_keys = spec.mask.window > 0 && spec.mask.sinks > 0;
  return {first_keys ? TokenForm::kernels : TokenForm::decoder};
}

using Sparsity = MaskRule::Sparsity;

constexpr MechanismSetting kMaskSettings[] = {
    {"window and sinks", [](AttentionSpec& s) { s.mask.window = 128, s.mask.sinks = 4; }},
    {"strided", [](AttentionSpec& s) { s.mask.sparsity = Sparsity::strided, s.mask.stride = 16; }},
    {"fixed", [](AttentionSpec& s) { s.mask.sparsity = Sparsity::fixed, s.mask.block = 16; }},
    {"not causal", [](AttentionSpec& s) { s.mask.causal = false; }},
};

}  // namespace

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

std::span<const std::string_view> enum_names(MaskRule::Sparsity) {
  static constexpr std::string_view names[] = {"full", "strided", "fixed"};
  return names;
}

const Mechanism& mask_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "mask",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.group({"mask", "stage 6: which keys a query may see"},
                    [&spec](FieldVisitor& m) { describe_mask(spec.mask, m); });
          },
      .check = check_mask,
      .uses = mask_uses,
      .token_of = token_mask,
      .settings = kMaskSettings};
  return mechanism;
}

}  // namespace fovea
