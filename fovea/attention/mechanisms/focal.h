// Focal Attention: the temperature of the softmax, constant or learned (paper: Learning to Focus;
// spec 10, F-1 ... F-12).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "fovea/config/fields.h"

namespace fovea {

struct AttentionContext;
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

/// Parameters of a learned temperature. `global` uses the bias alone.
struct TemperatureParameters {
  at::Tensor weight_c;  ///< w_tau, [width]; starts at 0
  at::Tensor bias;      ///< b, scalar []; F-3: starts inside the bounds (clip) or at 0 (sigmoid)
};

/// The start value of the bias for head width d (F-3): inside the bounds; 0 for `sigmoid`.
double initial_temperature_bias(const TemperatureSpec& spec, int64_t head_dim);

/// State of the prefix mean between calls (decode): running sum of x.w and number of tokens per
/// sequence of the batch.
struct TemperatureState {
  at::Tensor sum_b;    ///< float64 [b]
  at::Tensor count_b;  ///< int64 [b]
};

/// tau of every row, [b, t] float32 (float64 for float64 input), and how many rows the bounds
/// clipped.
struct TemperatureRows {
  at::Tensor tau_bt;
  at::Tensor clipped_share;  ///< scalar, share of rows at or outside the bounds (0 for sigmoid)
  at::Tensor sums_bt;  ///< `prefix`: running sum of x.w up to every row, float64, without gradient
};

/// tau from the layer's normed input x [b, t, width] (F-7). Documents (runs of equal labels) of
/// `context` limit the means (F-2, F-11). With `state` (prefix form, one document a row) the call
/// continues earlier ones and advances the state (F-12). `sequence` with state throws
/// UnsupportedError.
TemperatureRows temperature_rows(const TemperatureSpec& spec, int64_t head_dim,
                                 const TemperatureParameters& parameters, const at::Tensor& x_btc,
                                 const AttentionContext& context,
                                 TemperatureState* state = nullptr);

}  // namespace fovea
