// A set of parameters by origin and mechanism, as `train.trainable` names it.
//
//   "all", "base", "added", or mechanisms; several joined by "+": "focus+lora", "base+temperature"
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fovea/nn/parameters.h"

namespace fovea {

class ParameterSet {
 public:
  /// ConfigError that names `key` and the legal names where `text` holds another one.
  static ParameterSet parse(std::string_view text, std::string_view key);

  bool contains(const Parameter& parameter) const;
  /// Whether the text holds this name; "all" holds no other.
  bool names(std::string_view name) const;
  /// The mechanisms among the names.
  std::vector<std::string> mechanisms() const;
  bool operator==(const ParameterSet&) const = default;

 private:
  std::vector<std::string> names_;  // sorted, each once
};

}  // namespace fovea
