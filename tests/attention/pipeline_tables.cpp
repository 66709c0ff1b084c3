// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/attention/pipeline_tables.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "fovea/attention/paths/fused_call.h"
#include "fovea/attention/paths/mixing.h"
#include "fovea/attention/paths/path.h"
#include "fovea/attention/refusals.h"
#include "fovea/attention/stages.h"

namespace fovea::testing {
namespace {

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
  const KeyRule rule = call.key_rule();
  if (rule == KeyRule::mask && why_not_pointwise(call) && why_not_mixing(call)) return "reference";
  const auto path = std::ranges::find(attention_paths(), rule, &AttentionPath::key_rule);
  return enum_name(path->name);
}

}  // namespace

std::string stages_markdown() {
  std::string table = "| # | stage | what happens |\n|---|---|---|\n";
  for (const Stage& stage : attention_stages())
    table += fmt::format("| {} | `{}` | `{}` |\n", stage.number(), stage.name, stage.formula);
  return table;
}

std::vector<MechanismSetting> mechanism_settings() {
  std::vector<MechanismSetting> settings;
  for (const Mechanism* mechanism : mechanisms())
    settings.insert(settings.end(), mechanism->settings.begin(), mechanism->settings.end());
  return settings;
}

std::string why_not_together(const MechanismSetting& a, const MechanismSetting& b) {
  if (a.name == b.name) return "";
  const AttentionSpec ab = spec_with(a, b);
  for (const MechanismSetting* one : {&a, &b}) {
    for (const std::string& setting : settings_of(spec_with(*one, *one))) {
      const std::vector<std::string> both = settings_of(ab);
      if (std::ranges::find(both, setting) == both.end()) return std::string(kOneSetting);
    }
  }
  const std::optional<Refusal> refused = refusal(ab);
  return refused ? std::string(refused->reason) : "";
}

namespace {

/// For each reason, the pairs that it refuses: "4 with 13, 14; 5 with 9".
class Refusals {
 public:
  void add(const std::string& reason, size_t row, size_t column) {
    auto found = std::ranges::find(reasons_, reason, &Reason::text);
    if (found == reasons_.end()) found = reasons_.insert(found, {.text = reason});
    found->pairs += found->row == row
                        ? fmt::format(", {}", column)
                        : fmt::format("{}{} with {}", found->row > 0 ? "; " : "", row, column);
    found->row = row;
  }
  std::string markdown() const {
    std::string table = "| why not | settings |\n|---|---|\n";
    for (const Reason& reason : reasons_)
      table += fmt::format("| {} | {} |\n", reason.text, reason.pairs);
    return table;
  }

 private:
  struct Reason {
    std::string text, pairs;
    size_t row = 0;  // that `pairs` ends with
  };
  std::vector<Reason> reasons_;
};

}  // namespace

std::string composition_markdown() {
  const std::vector<MechanismSetting> all = mechanism_settings();
  std::string table = "| | setting | stages | kernels |";
  std::string line = "|---|---|---|---|";
  Refusals refusals;
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
      const bool choice = why == kOneSetting;
      table += row == column ? " |" : why.empty() ? " yes |" : choice ? " or |" : " no |";
      if (!why.empty() && !choice && row < column) refusals.add(why, row + 1, column + 1);
    }
    table += "\n";
  }
  return table + "\n" + refusals.markdown();
}

}  // namespace fovea::testing
