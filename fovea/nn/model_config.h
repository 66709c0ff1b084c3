// The configuration of a decoder: sizes, positions, norms, and the attention of each layer.
//
// LLaMA style by default: pre-norm RMSNorm, SwiGLU, RoPE, grouped-query attention (spec 3.7, 10.3);
// model_options.h has the other choices (spec 6, 7).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "fovea/attention/mechanisms/multi_token.h"
#include "fovea/attention/positions/rope.h"
#include "fovea/attention/spec.h"
#include "fovea/config/fields.h"
#include "fovea/nn/lora_settings.h"
#include "fovea/nn/model_options.h"

namespace fovea {

// The settings of a model around those of a mechanism. Each has
//   describe  its keys, beside those of the mechanism;
//   check     ConfigError for values that this model or the mechanism's keys do not allow;
//   apply     the mechanism in one layer: neutral where the layer does not have it.

/// Multi-Token Attention of a model: the layers that have the convolutions, their start.
struct MultiTokenSettings {
  std::vector<int64_t> layers;  ///< from 0; empty = all
  KernelStart init = KernelStart::identity;
  double init_value = 0.0;  ///< of `constant` and `uniform`; 0 = 0.3 and 1 (3.5)

  void describe(FieldVisitor& v);
  void check(const MultiTokenSpec& rule, int64_t model_layers) const;
  void apply(int64_t layer, AttentionSpec& spec) const;
  bool operator==(const MultiTokenSettings&) const = default;
};

/// Focus of a model: the layers that have it, and how its groups are kept from collapsing while
/// they learn (spec 11; the paper's Table 8).
struct FocusSettings {
  std::vector<int64_t> layers;  ///< from 0; empty = all
  /// Also where mask.window restricts: both must allow a pair (U-22).
  bool windowed_layers = false;
  bool standardise = true;  ///< the input gets mean 0 and size 1 from calibration (U-24)
  /// > 0: lambda of `logsig` moves from strength to this over a run, unlearned (11.2).
  double final_strength = 0.0;
  double ema_decay = 0.0;       ///< of the potentials; 0 = 1 - 1/max(5, steps/30), at most 0.99
  bool stop_gradient = false;   ///< no gradient from the gate into the residual stream
  double entropy_weight = 0.0;  ///< of the mean entropy of g, added to the loss
  double balance_weight = 0.0;  ///< of ln K minus the entropy of the mean g, added to the loss
  double centroid_decay = 0.0;  ///< > 0: centroids follow the mean z of their tokens, no gradient
  int64_t recluster_interval = 0;  ///< steps between k-means restarts of the centroids; 0 = never

  void describe(FieldVisitor& v);
  void check(const FocusSpec& groups, int64_t model_layers) const;
  void apply(int64_t layer, AttentionSpec& spec) const;
  bool operator==(const FocusSettings&) const = default;
};

/// Routing attention of a model: the layers that have it, how its centroids follow.
struct RoutingSettings {
  std::vector<int64_t> layers;  ///< from 0; empty = all
  double decay = 0.999;         ///< EMA of the clusters' sizes and sums (spec 4.3)

  void describe(FieldVisitor& v);
  void check(const RoutingSpec& rule, int64_t model_layers) const;
  void apply(int64_t layer, AttentionSpec& spec) const;
  bool operator==(const RoutingSettings&) const = default;
};

/// Longformer of a model: windows that grow with the layers.
struct LongformerSettings {
  std::vector<int64_t> layers;   ///< from 0; empty = all
  std::vector<int64_t> windows;  ///< of each layer of the model; empty = `window` in all

  void describe(FieldVisitor& v);
  void check(const LongformerSpec& rule, int64_t model_layers) const;
  void apply(int64_t layer, AttentionSpec& spec) const;
  bool operator==(const LongformerSettings&) const = default;
};

/// Performer of a model: the layers that have it, and when features are drawn anew.
struct PerformerSettings {
  std::vector<int64_t> layers;  ///< from 0; empty = all
  int64_t redraw = 0;           ///< optimizer steps between draws; 0 = one draw for good

  void describe(FieldVisitor& v);
  void check(const PerformerSpec& rule, int64_t model_layers) const;
  void apply(int64_t layer, AttentionSpec& spec) const;
  bool operator==(const PerformerSettings&) const = default;
};

/// MagicPIG of a model: layers that see everything (spec 4.5: 0, 16, 32, ...).
struct MagicPigSettings {
  int64_t dense_every = 16;  ///< layer 0 and every so many; 0 = none

  void describe(FieldVisitor& v);
  void check(const MagicPigSpec& /*rule*/, int64_t /*model_layers*/) const {}
  void apply(int64_t layer, AttentionSpec& spec) const;
  bool operator==(const MagicPigSettings&) const = default;
};

/// The attention keys of a model; one AttentionSpec a layer is derived from them.
struct AttentionSettings {
  /// The part that the layers share. Sizes and depth are the model's. `mask` holds in layers
  /// outside of `full`; Focus, routing and convolutions act in the layers of their settings.
  /// `differential` brings its head_output.
  AttentionSpec spec;
  /// Constant t of each layer; empty = temperature.value everywhere.
  std::vector<double> temperature_per_layer;
  MultiTokenSettings multi_token;
  FocusSettings focus;
  RoutingSettings routing;
  LongformerSettings longformer;
  PerformerSettings performer;
  MagicPigSettings magic_pig;
  FullLayers full;           ///< layers that `mask` does not hold for
  bool decay_added = false;  ///< M-19: weight decay also on kernels, mixes, head norms and gates

  void describe(FieldVisitor& v);
  bool operator==(const AttentionSettings&) const = default;
};

/// The keys of `attention` that belong to the architecture: the mechanisms that an adapter can hold
/// are neutral (Mechanism::remove).
AttentionSettings base_attention(const AttentionSettings& attention);

struct ModelConfig {
  int64_t vocab_size = 0;  ///< 0 = the tokenizer's
  int64_t layers = 4;
  int64_t width = 256;
  int64_t heads = 4;
  int64_t kv_heads = 0;  ///< 0 = heads
  int64_t head_dim = 0;  ///< 0 = width / heads
  /// 0 = nearest multiple to 8/3 width with a gate, to 4 width without: the same number of
  /// parameters.
  int64_t ffn_width = 0;
  int64_t ffn_multiple = 64;  ///< of the width that 0 stands for
  FeedForward feed_forward = FeedForward::swiglu;
  int64_t context = 256;  ///< trained length in tokens
  bool tied = true;       ///< the head is the embedding
  BlockLayout block = BlockLayout::pre;
  NormKind norm = NormKind::rms;
  QkNorm qk_norm = QkNorm::none;
  double norm_eps = 1e-5;
  /// Factor of what the norms before attention and feed-forward give in layer l (M-8): `lambda`
  /// 1 - lambda_init(l) (the code of Multi-Token Attention), `inverse_sqrt` 1/sqrt(l+1) (Sun et al.
  /// 2025).
  HeadOutputSpec::DepthScale norm_depth_scale = HeadOutputSpec::DepthScale::none;
  BiasKeys biases;
  double dropout = 0.0;  ///< on embeddings and on what each block adds
  /// Multiplies the start of W_q, or of the q gain with qk_norm (F-5's fair control).
  double query_init = 1.0;
  InitSpec init;
  double embedding_scale = 1.0;  ///< multiplies embeddings; 0 = sqrt(width) (Gemma)
  double logit_scale = 1.0;      ///< multiplies the head's output
  double logit_cap = 0.0;        ///< c of c tanh(z / c) on the head's output; 0 = off
  int64_t vocab_multiple = 1;    ///< the vocabulary is padded to a multiple of this
  Positions positions = Positions::rope;
  RopeSpec rope;
  AttentionSettings attention;
  LoraSettings lora;

  void describe(FieldVisitor& v);
  /// Fills the zeros (vocab_size from `tokenizer_vocab`) and checks everything; ConfigError with
  /// the key.
  ModelConfig resolved(int64_t tokenizer_vocab) const;
  /// The spec of one layer; the config must be resolved.
  AttentionSpec layer_attention(int64_t layer) const;
  /// Whether the rotation of a token depends on the length of its text (dynamic scaling, 6.2).
  bool rotates_by_length() const { return positions == Positions::rope && rope.scaling.dynamic(); }
  /// The same model with its constant temperatures at this place of the ramp (F-9).
  ModelConfig at_temperature_ramp(double ramp) const;
  /// Whether queries and keys of the layer are rotated.
  bool rotated(int64_t layer) const;
  /// The factor of norm_depth_scale.
  double norm_factor(int64_t layer) const;
  bool operator==(const ModelConfig&) const = default;
};

/// A constant temperature on its way from 1 (ramp 0) to `value` (ramp 1), F-9.
double ramped_temperature(double value, double ramp);

/// Number of parameters, exactly as the registry will count them (state is not counted).
int64_t parameter_count(const ModelConfig& resolved);

}  // namespace fovea
