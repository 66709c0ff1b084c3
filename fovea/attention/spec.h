// AttentionSpec: what one layer's attention is. Static, serialisable, without a tensor (seam 1 of
// the design).
//
// Attention is one pipeline of stages (stages.h is its table); a mechanism is a setting of it.
// Sources: Focal Attention, Eq. 4-6 (spec 10, F-1 ... F-12); soft-cap spec 7.4; ALiBi 6.4; T5 6.3;
// sink logit 7.5; masks fovea/kernels/common/mask_rule.h.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "fovea/config/fields.h"
#include "fovea/kernels/common/mask_rule.h"

namespace fovea {

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

/// Additive position bias, after the scale (stage 5).
struct BiasSpec {
  enum class Kind { none, alibi, t5 };
  Kind kind = Kind::none;
  int64_t buckets = 32;        ///< t5: table rows
  int64_t max_distance = 128;  ///< t5

  void describe(FieldVisitor& v);
  bool operator==(const BiasSpec&) const = default;
};

struct AttentionSpec {
  int64_t heads = 1;
  int64_t kv_heads =
      1;  ///< divides heads: MHA (= heads), GQA, MQA (1); head h reads h / (heads / kv_heads)
  int64_t head_dim = 64;  ///< d of queries and keys
  int64_t value_dim = 0;  ///< of values; 0 = head_dim
  double scale = 0.0;     ///< replaces 1/sqrt(d) when > 0 (Gemma-2 27B, T5 = 1)
  TemperatureSpec temperature;
  double soft_cap = 0.0;  ///< c of c tanh(s / c); 0 = off
  BiasSpec bias;
  MaskRule mask;
  bool sink_logit = false;  ///< one learned scalar per head joins the softmax with value 0
  double dropout = 0.0;     ///< on the weights, counter-based

  /// Keys of the JSON form (case files, config.json).
  void describe(FieldVisitor& v);
  /// ConfigError naming the first impossible setting (sizes, bounds, refused combinations).
  void check() const;
  int64_t value_width() const { return value_dim > 0 ? value_dim : head_dim; }
  /// The factor of q.k for a constant temperature: scale / t.
  double logit_scale() const;
  bool operator==(const AttentionSpec&) const = default;
};

std::span<const std::string_view> enum_names(TemperatureSpec::Kind);
std::span<const std::string_view> enum_names(TemperatureSpec::Form);
std::span<const std::string_view> enum_names(TemperatureSpec::Bound);
std::span<const std::string_view> enum_names(BiasSpec::Kind);
std::span<const std::string_view> enum_names(MaskRule::Sparsity);

/// Visits the keys of a mask rule (here because kernels/ knows no config).
void describe_mask(MaskRule& rule, FieldVisitor& v);

}  // namespace fovea
