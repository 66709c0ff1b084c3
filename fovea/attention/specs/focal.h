// TemperatureSpec: the settings of Focal Attention (spec 10).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "fovea/config/fields.h"

namespace fovea {

struct Mechanism;

/// Stage 1 of the pipeline (spec 10).
struct TemperatureSpec {
  /// `constant`: logits q.k / (t sqrt(d)); `learned`: logits q.k / tau_i with tau from the layer's
  /// input.
  enum class Kind { constant, learned };
  /// F-1: `sequence` is the paper's mean (leaks the future), `prefix` the causal mean, `token` the
  /// row itself, `global` a free scalar.
  enum class Form { sequence, prefix, token, global };
  /// F-3: `clip` has gradient 0 outside the bounds, `straight_through` passes it, `sigmoid` maps
  /// smoothly into them.
  enum class Bound { clip, sigmoid, straight_through };

  Kind kind = Kind::constant;
  double value = 1.0;  ///< t of `constant`, > 0
  Form form = Form::prefix;
  Bound bound = Bound::clip;
  double tau_min = 5.0;   ///< for d = 128; used x sqrt(d / 128) (F-6)
  double tau_max = 10.0;  ///< for d = 128
  bool scale_bounds = true;

  void describe(FieldVisitor& v);
  /// The bounds of tau for head width d.
  double low(int64_t d) const;
  double high(int64_t d) const;
  bool operator==(const TemperatureSpec&) const = default;
};

/// Whether a token's tau depends on those before it.
inline bool keeps_prefix_sum(const TemperatureSpec& spec) {
  return spec.kind == TemperatureSpec::Kind::learned && spec.form == TemperatureSpec::Form::prefix;
}

std::span<const std::string_view> enum_names(TemperatureSpec::Kind);
std::span<const std::string_view> enum_names(TemperatureSpec::Form);
std::span<const std::string_view> enum_names(TemperatureSpec::Bound);

const Mechanism& temperature_mechanism();

}  // namespace fovea
