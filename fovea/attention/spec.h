// AttentionSpec, the settings of one layer's attention, static and serialisable; AttentionTensors,
// its learned and computed tensors.
//
// Attention is one pipeline of stages (stages.h is its table); a mechanism is a setting of it, and
// its keys, checks and tensors are its own (mechanism.h).
//
//   mechanism                  section of the spec
//   Focal Attention, Eq. 4-6   10   F-1 ... F-12
//   Multi-Token Attention      3    M-1 ... M-21
//   talking heads              2
//   Differential               1
//   Focus                      11   U-1 ... U-26
//   soft-cap, sink logit       7.4, 7.5
//   ALiBi, T5                  6.4, 6.3
//   masks                      fovea/kernels/common/mask_rule.h
//
// Shape suffixes: b batch, h query heads, g key/value heads, t queries, s keys, d key width, e
// value width.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "fovea/attention/specs/bias.h"
#include "fovea/attention/specs/block_pairs.h"
#include "fovea/attention/specs/focal.h"
#include "fovea/attention/specs/focus.h"
#include "fovea/attention/specs/head_output.h"
#include "fovea/attention/specs/kv_shift.h"
#include "fovea/attention/specs/longformer.h"
#include "fovea/attention/specs/magic_pig.h"
#include "fovea/attention/specs/multi_token.h"
#include "fovea/attention/specs/own_stage.h"
#include "fovea/attention/specs/performer.h"
#include "fovea/attention/specs/routing.h"
#include "fovea/attention/specs/sparq.h"
#include "fovea/attention/specs/streaming.h"
#include "fovea/attention/specs/talking_heads.h"
#include "fovea/config/fields.h"
#include "fovea/kernels/common/mask_rule.h"

namespace fovea {

/// The place that errors about a spec name.
inline constexpr const char* kSpecPlace = "attention spec";

struct AttentionSpec {
  int64_t heads = 1;
  /// Divides heads: MHA (= heads), GQA, MQA (1); head h reads h / (heads / kv_heads).
  int64_t kv_heads = 1;
  int64_t head_dim = 64;  ///< d of queries and keys
  int64_t value_dim = 0;  ///< of values; 0 = head_dim (2 head_dim with `differential`)
  double scale = 0.0;     ///< replaces 1/sqrt(d) when > 0 (Gemma-2 27B, T5 = 1)
  KvShiftSpec kv_shift;
  TemperatureSpec temperature;
  double soft_cap = 0.0;  ///< c of c tanh(s / c); 0 = off
  MultiTokenSpec multi_token;
  HeadMixSpec head_mix;
  OwnStageSpec own;
  FocusSpec focus;
  RoutingSpec routing;
  BlockPairsSpec blocks;
  LongformerSpec longformer;
  StreamingSpec streaming;
  SparqSpec sparq;
  MagicPigSpec magic_pig;
  BiasSpec bias;
  MaskRule mask;
  PerformerSpec performer;
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

/// The learned or computed inputs of the stages; an undefined tensor means the stage is neutral.
struct AttentionTensors {
  /// [b, t] float: divides the raw q.k of row i (learned temperature; replaces sqrt(d)).
  at::Tensor tau_bt;
  at::Tensor bias_table;    ///< [buckets, h]: T5 bias
  at::Tensor sink_logit_h;  ///< [h]
  /// Multi-Token kernels [h, cq, ck]; row cq-1 is the current query (M-4).
  at::Tensor kernel_before_hqk, kernel_after_hqk;
  at::Tensor mix_before_noi;  ///< [groups, m, m] stored (out, in)
  at::Tensor mix_after_nio;   ///< [groups, m, m] stored (in, out)
  at::Tensor head_gain_e;     ///< [e], shared by the heads
  at::Tensor gate_weight;     ///< scalar gate u [e]; full gate U [e, e] stored (out, in)
  at::Tensor gate_bias;       ///< scalar gate c []; full gate [e]
  at::Tensor lambda_4d;       ///< Differential: rows lq1, lk1, lq2, lk2 of lambda, [4, d]
  /// Focus, of the keys; the queries are the last t of them. groups: g, rows sum to 1 [b, s, K];
  /// members: bit k set where the token is in group k, int64 [b, s]; strength: lambda [].
  at::Tensor groups_bsk, members_bs, focus_strength;

  at::Tensor key_shift_g2, value_shift_g2;  ///< KV shifting: (a1, a2) and (b1, b2) of each head

  /// Routing: clusters of queries and keys for every query head, int64 [b, h, t] and [b, h, s].
  /// Choice `nearest` also needs the nearness of keys to their centroid, float [b, h, s].
  at::Tensor query_routes_bht, key_routes_bhs, key_nearness_bhs;

  /// Longformer's own projections of global rows: queries [b, h, t, d], keys [b, g, s, d] and
  /// values [b, g, s, e] that they read.
  at::Tensor global_q_bhtd, global_k_bgsd, global_v_bgse;
  /// StreamingLLM: the queries that read start keys, rotated to their place in the cache [b, h, t,
  /// d].
  at::Tensor start_q_bhtd;
  at::Tensor features_md;  ///< Performer: directions of the random features, shared by heads

  at::Tensor own;  ///< of a stage of one's own: its learned tensor

  /// Every member with its name in case files; undefined ones too.
  std::vector<std::pair<std::string_view, at::Tensor*>> named();
};

std::span<const std::string_view> enum_names(MaskRule::Sparsity);

/// Visits the keys of a mask rule (here because kernels/ knows no config).
void describe_mask(MaskRule& rule, FieldVisitor& v);

}  // namespace fovea
