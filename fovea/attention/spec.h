// AttentionSpec: what one layer's attention is. Static and serialisable (seam 1 of
// the design).
//
// Attention is one pipeline of stages (stages.h is its table); a mechanism is a setting of it, and
// its keys, checks and tensors are its own (mechanisms/mechanism.h).
// Sources: Focal Attention, Eq. 4-6 (spec 10, F-1 ... F-12); Multi-Token Attention (spec 3, M-1 ...
// M-21); talking heads (spec 2); Differential (spec 1); Focus (spec 11, U-1 ... U-26); soft-cap
// spec 7.4; ALiBi 6.4; T5 6.3; sink logit 7.5; masks fovea/kernels/common/mask_rule.h.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "fovea/attention/mechanisms/block_pairs.h"
#include "fovea/attention/mechanisms/focal.h"
#include "fovea/attention/mechanisms/focus.h"
#include "fovea/attention/mechanisms/head_output.h"
#include "fovea/attention/mechanisms/multi_token.h"
#include "fovea/attention/mechanisms/own_stage.h"
#include "fovea/attention/mechanisms/routing.h"
#include "fovea/attention/mechanisms/talking_heads.h"
#include "fovea/attention/positions/bias.h"
#include "fovea/config/fields.h"
#include "fovea/kernels/common/mask_rule.h"

namespace fovea {

struct AttentionSpec {
  int64_t heads = 1;
  int64_t kv_heads =
      1;  ///< divides heads: MHA (= heads), GQA, MQA (1); head h reads h / (heads / kv_heads)
  int64_t head_dim = 64;  ///< d of queries and keys
  int64_t value_dim = 0;  ///< of values; 0 = head_dim (2 head_dim with `differential`)
  double scale = 0.0;     ///< replaces 1/sqrt(d) when > 0 (Gemma-2 27B, T5 = 1)
  TemperatureSpec temperature;
  double soft_cap = 0.0;  ///< c of c tanh(s / c); 0 = off
  MultiTokenSpec multi_token;
  HeadMixSpec head_mix;
  OwnStageSpec own;
  FocusSpec focus;
  RoutingSpec routing;
  BlockPairsSpec blocks;
  BiasSpec bias;
  MaskRule mask;
  bool sink_logit = false;  ///< one learned scalar per head joins the softmax with value 0
  double dropout = 0.0;     ///< on the weights that meet the values, counter-based
  /// Differential attention (spec 1): pairs of query heads are the two maps of one head, pairs of
  /// key heads their keys; there are half as many value heads and outputs.
  bool differential = false;
  HeadOutputSpec head_output;
  int64_t depth = 0;  ///< index l of the layer, from 0: lambda_init, head_output.depth_scale

  /// Keys of the JSON form (case files, config.json).
  void describe(FieldVisitor& v);
  /// ConfigError naming the first impossible setting (sizes, bounds, refused combinations).
  void check() const;
  int64_t value_width() const {
    return value_dim > 0 ? value_dim : differential ? 2 * head_dim : head_dim;
  }
  int64_t value_heads() const { return differential ? kv_heads / 2 : kv_heads; }
  int64_t output_heads() const { return differential ? heads / 2 : heads; }
  /// The factor of q.k for a constant temperature: scale / t.
  double logit_scale() const;
  bool operator==(const AttentionSpec&) const = default;
};

std::span<const std::string_view> enum_names(MaskRule::Sparsity);

/// Visits the keys of a mask rule (here because kernels/ knows no config).
void describe_mask(MaskRule& rule, FieldVisitor& v);

}  // namespace fovea
