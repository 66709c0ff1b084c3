// The mechanisms that `fovea retrofit` can put on a frozen model, one line each.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/nn/model_config.h"

namespace fovea {

struct RetrofitKind {
  std::string_view name;       ///< "focus"
  std::string_view trainable;  ///< what learns, as in `train.trainable`
  std::string_view help;       ///< one line for people: what it is, and how it starts
  double learning_rate = 1e-3;
  bool groups_first = false;  ///< learns in the phase of groups, before all that learn together
  /// No start computes what the base computes: the retrofit makes the nearest one, a model of its
  /// own (differential_start.h).
  bool own_start = false;
  /// Sets the keys of `config`. The start computes what the base computes, but for rounding; with
  /// `own_start` it does not, and with Focus only where that is off.
  void (*apply)(ModelConfig& config);
  /// Whether the model has it already.
  bool (*has)(const ModelConfig& config);
};

/// All of them, in the order in which they are put on.
std::span<const RetrofitKind> retrofit_kinds();

/// The kinds named, each once, in that order. ConfigError for an unknown name (the nearest is
/// shown), for none, and for a mechanism that the base has already.
std::vector<const RetrofitKind*> chosen_kinds(std::span<const std::string> names,
                                              const ModelConfig& base);

}  // namespace fovea
