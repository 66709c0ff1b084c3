// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/retrofit/kinds.h"

#include <algorithm>

#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"

namespace fovea {
namespace {

// Settings of the retrofit study and of the papers (spec 3.1, 11.7); every one is a recipe key.
void apply_focus(ModelConfig& config) {
  FocusSpec& focus = config.attention.spec.focus;
  focus.gate = FocusSpec::Gate::log;
  focus.groups = 8;
  focus.top_k = 2;
  focus.window = 128;
  focus.sinks = 4;
}

// A learned temperature starts in the middle of its bounds (F-3): here at sqrt(d).
void apply_focal(ModelConfig& config) {
  constexpr double kRoot = 11.313708498984761;  // sqrt(128): bounds are given for d = 128 (F-6)
  TemperatureSpec& temperature = config.attention.spec.temperature;
  temperature.kind = TemperatureSpec::Kind::learned;
  temperature.form = TemperatureSpec::Form::prefix;
  temperature.tau_min = 5.0;
  temperature.tau_max = 2.0 * kRoot - temperature.tau_min;
}

void apply_multi_token(ModelConfig& config) {
  config.attention.spec.multi_token.before = {.queries = 6, .keys = 11};
  config.attention.spec.multi_token.after = {.queries = 6, .keys = 11};
  config.attention.multi_token.init = KernelStart::identity;
  for (int64_t layer = 3; layer < config.layers; layer += 4)
    config.attention.multi_token.layers.push_back(layer);
}

void apply_talking_heads(ModelConfig& config) {
  config.attention.spec.head_mix.before = HeadMixSpec::Kind::full;
  config.attention.spec.head_mix.after = HeadMixSpec::Kind::full;
}

void apply_differential(ModelConfig& config) { config.attention.spec.differential = true; }

void apply_lora(ModelConfig& config) {
  config.lora.rank = 8;
  config.lora.alpha = 16.0;
  config.lora.targets = {"q_proj", "v_proj"};
}

bool has_focus(const ModelConfig& config) { return config.attention.spec.focus.active(); }

bool has_focal(const ModelConfig& config) {
  return config.attention.spec.temperature != TemperatureSpec{};
}

bool has_multi_token(const ModelConfig& config) {
  const MultiTokenSpec& kernels = config.attention.spec.multi_token;
  return kernels.before.active() || kernels.after.active();
}

bool has_talking_heads(const ModelConfig& config) {
  return config.attention.spec.head_mix != HeadMixSpec{};
}

bool has_lora(const ModelConfig& config) { return config.lora.active(); }

bool has_differential(const ModelConfig& config) { return config.attention.spec.differential; }

}  // namespace

std::span<const RetrofitKind> retrofit_kinds() {
  static constexpr RetrofitKind kinds[] = {
      {.name = "focus",
       .trainable = "focus",
       .help = "groups of tokens that prune distant pairs; off, the base is as it was",
       .groups_first = true,
       .apply = apply_focus,
       .has = has_focus},
      {.name = "focal",
       .trainable = "temperature",
       .help = "a learned temperature in every layer; starts at sqrt(d)",
       .apply = apply_focal,
       .has = has_focal},
      {.name = "multi_token",
       .trainable = "multi_token",
       .help = "key-query convolutions in every fourth layer; starts as identity",
       .apply = apply_multi_token,
       .has = has_multi_token},
      {.name = "talking_heads",
       .trainable = "head_mix",
       .help = "head mixing before and after the softmax; starts as identity",
       .apply = apply_talking_heads,
       .has = has_talking_heads},
      {.name = "differential",
       .trainable = "differential+head_output",
       .help = "pairs of heads subtract their maps; starts near the base, not at it",
       .own_start = true,
       .apply = apply_differential,
       .has = has_differential},
      {.name = "lora",
       .trainable = "lora",
       .help = "low-rank adapters on queries and values; starts at 0",
       .learning_rate = 2e-4,
       .apply = apply_lora,
       .has = has_lora},
  };
  return kinds;
}

std::vector<const RetrofitKind*> chosen_kinds(std::span<const std::string> names,
                                              const ModelConfig& base) {
  std::vector<std::string> known;
  for (const RetrofitKind& kind : retrofit_kinds()) known.emplace_back(kind.name);
  require<ConfigError>(!names.empty(), "retrofit", "expected at least one of {}; got none",
                       fmt::join(known, ", "));
  for (const std::string& name : names) {
    require<ConfigError>(std::ranges::find(known, name) != known.end(), "retrofit",
                         "expected mechanisms from {}; got '{}'{}", fmt::join(known, ", "), name,
                         did_you_mean(name, known));
  }
  std::vector<const RetrofitKind*> chosen;
  for (const RetrofitKind& kind : retrofit_kinds()) {
    if (std::ranges::find(names, kind.name) == names.end()) continue;
    require<ConfigError>(!kind.has(base), "retrofit",
                         "the base has {} already; train it further with `fovea train` and "
                         "train.init_from, or give the model without it",
                         kind.name);
    chosen.push_back(&kind);
  }
  return chosen;
}

}  // namespace fovea
