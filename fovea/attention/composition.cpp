// The table of combinations.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/composition.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "fovea/attention/paths/fused_call.h"
#include "fovea/attention/paths/mixing.h"
#include "fovea/attention/stages.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

constexpr std::string_view kChoice = "two values of one setting";

AttentionSpec spec_with(const MechanismSetting& a, const MechanismSetting& b) {
  AttentionSpec spec{.heads = 4, .kv_heads = 2};
  a.apply(spec);
  b.apply(spec);
  return spec;
}

// The numbers of the stages that a setting switches on.
std::string stages_of(const AttentionSpec& spec) {
  std::vector<int> numbers;
  for (const Stage& stage : attention_stages())
    if (!stage.active(spec).empty()) numbers.push_back(stage.number());
  return fmt::format("{}", fmt::join(numbers, ", "));
}

std::vector<std::string> settings_of(const AttentionSpec& spec) {
  std::vector<std::string> all;
  for (const Stage& stage : attention_stages()) {
    for (std::string& setting : stage.active(spec)) all.push_back(std::move(setting));
  }
  return all;
}

// The kernels that a setting alone runs on.
std::string_view kernels_of(const AttentionSpec& spec) {
  AttentionCall call{.spec = spec, .q = at::empty({1, spec.heads, 1, spec.head_dim})};
  call.spec.differential = false;  // its two maps are what the kernels see
  if (call.key_rule() == KeyRule::sums || call.key_rule() == KeyRule::parts) return "fused";
  if (call.key_rule() != KeyRule::mask) return "grouped";
  return why_not_pointwise(call) && why_not_mixing(call) ? "reference" : "fused";
}

}  // namespace

std::span<const MechanismSetting> mechanism_settings() {
  static const std::vector<MechanismSetting> all = [] {
    std::vector<MechanismSetting> settings;
    for (const Mechanism* mechanism : mechanisms())
      settings.insert(settings.end(), mechanism->settings.begin(), mechanism->settings.end());
    return settings;
  }();
  return all;
}

std::string why_not_together(const MechanismSetting& a, const MechanismSetting& b) {
  if (a.name == b.name) return "";
  // Two values of one setting are a choice, not a combination.
  const AttentionSpec ab = spec_with(a, b);
  for (const MechanismSetting* one : {&a, &b}) {
    for (const std::string& setting : settings_of(spec_with(*one, *one))) {
      const std::vector<std::string> both = settings_of(ab);
      if (std::ranges::find(both, setting) == both.end()) return std::string(kChoice);
    }
  }
  try {
    ab.check();
  } catch (const UnsupportedError& error) {
    return error.what();
  }
  return "";
}

std::string composition_markdown() {
  const std::span<const MechanismSetting> all = mechanism_settings();
  std::string table = "| | setting | stages | kernels |";
  std::string line = "|---|---|---|---|", reasons;
  for (size_t n = 0; n < all.size(); ++n) {
    table += fmt::format(" {} |", n + 1);
    line += "---|";
  }
  table += "\n" + line + "\n";
  for (size_t row = 0; row < all.size(); ++row) {
    const MechanismSetting& a = all[row];
    const AttentionSpec alone = spec_with(a, a);
    table +=
        fmt::format("| {} | {} | {} | {} |", row + 1, a.name, stages_of(alone), kernels_of(alone));
    for (size_t column = 0; column < all.size(); ++column) {
      const std::string why = why_not_together(a, all[column]);
      const bool choice = why == kChoice;
      table += row == column ? " |" : why.empty() ? " yes |" : choice ? " or |" : " no |";
      if (!why.empty() && !choice && row < column)
        reasons += fmt::format("- {} with {}: {}\n", a.name, all[column].name, why);
    }
    table += "\n";
  }
  return table + "\n" + reasons;
}

}  // namespace fovea
