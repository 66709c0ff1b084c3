// The keys of `model.lora`: the linear layers that get an adapter, and its size (spec 5).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/config/fields.h"

namespace fovea {

/// Rank and alpha of some modules (PEFT's rank_pattern and alpha_pattern).
struct LoraModule {
  std::string module;  ///< a module's name or the end of it: "o_proj", "layers.3.mlp.up_proj"
  int64_t rank = 0;    ///< 0 = lora.rank
  double alpha = 0.0;  ///< 0 = lora.alpha

  void describe(FieldVisitor& v);
  bool operator==(const LoraModule&) const = default;
};

/// Names match as in PEFT: a module is meant by its name or by the end of it after a dot.
struct LoraSettings {
  /// How A starts: `uniform` +-1/sqrt(inputs) (Kaiming with a = sqrt 5), `gaussian` N(0, 1/rank^2).
  enum class Start { uniform, gaussian };

  int64_t rank = 0;  ///< r; 0 = no adapter
  double alpha = 8.0;
  double dropout = 0.0;  ///< on the adapter's input, in training
  bool rslora = false;   ///< s = alpha / sqrt(r) instead of alpha / r
  Start start = Start::uniform;
  std::vector<std::string> targets = {"q_proj", "v_proj"};  ///< or "all-linear"
  std::vector<LoraModule> modules;

  bool active() const { return rank > 0; }
  void describe(FieldVisitor& v);
  /// ConfigError for numbers out of range.
  void check() const;
  bool operator==(const LoraSettings&) const = default;
};
std::span<const std::string_view> enum_names(LoraSettings::Start);

}  // namespace fovea
