// The walk through the layers: one for training, evaluation, decoding, maps and group training.
//
//   embed
//   for each layer: norm, temperature, heads, tensors of mechanisms, attention, rest of the block
//   final norm
//
// Its uses differ in two arguments: the source of keys (KeySource), and the observer
// (LayerObserver). Private to fovea/nn.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "fovea/attention/decode/cached_attention.h"
#include "fovea/attention/mechanisms/focal.h"
#include "fovea/base/by_type.h"
#include "fovea/nn/mechanisms/focus_layer.h"
#include "fovea/nn/ops.h"
#include "fovea/nn/transformer.h"

namespace fovea {

struct LayerWeights;  // transformer_impl.h

/// The spec of a layer in force: its configured one in the mode of Focus, with what scoring changes
/// (ComputeOptions::focus_change), at the present place of the temperature ramp (F-9).
AttentionSpec spec_in_force(const AttentionSpec& configured, const ComputeOptions& compute,
                            FocusMode mode);
inline AttentionSpec spec_in_force(const AttentionSpec& configured, const ComputeOptions& compute) {
  return spec_in_force(configured, compute, compute.focus);
}

/// The values that all layers of one walk share.
struct PassContext {
  AttentionContext attention;
  at::Tensor tokens_bt, positions;  // [b, t]
  int64_t last_position = 0;        // the largest of them, where a table of positions is read
  RopeTable rope;
  bool training = false;
  uint64_t dropout_seed = 0;
  FocusMode focus = FocusMode::configured;
  DecodeState* earlier = nullptr;  // caches of the tokens before; null: this call has all keys
};

struct LayerStep;

/// The source of one layer's keys, and of the state that earlier tokens left: this call, or a cache
/// that the call's tokens join.
struct KeySource {
  AttentionCache* cache = nullptr;  // null: this call has all keys
  SortedCopy* sorted = nullptr;     // of the cache

  /// tau of the call's tokens from the normed input y [b, t, c].
  TemperatureRows temperature(const TemperatureSpec& spec, int64_t head_dim,
                              const TemperatureParameters& parameters, const at::Tensor& y,
                              const AttentionContext& context) const;
  /// Potentials of the call's tokens. The groups of cached tokens were fixed when those were
  /// processed (11.3).
  at::Tensor potentials(const FocusSpec& spec, const at::Tensor& scores_btk,
                        const AttentionContext& context, const at::Tensor& ema_k) const;
  AttentionResult attend(const LayerStep& step, const AttentionContext& context) const;
};

/// One layer of the walk up to its attention.
struct LayerStep {
  int64_t index = 0;
  const LayerWeights& layer;
  const ModelConfig& config;
  const ComputeOptions& compute;
  KeySource keys;
  AttentionSpec spec;  // in force
  at::Tensor x, y;     // the residual stream, and normed
  Heads heads;
  AttentionTensors tensors;
  LayerGroups groups;        // with Focus
  ByType made;               // of mechanisms, for their telemetry
  at::Tensor clipped_share;  // scalar, of a learned temperature (F-3)

  /// Effective t: the constant, or mean tau / sqrt(d).
  Reading temperature() const;
};

/// Who looks on. Recomputed layers (gradient checkpointing) are seen once, in the forward pass.
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  /// Before attention, of which it may ask more (`want_lse`, `want_tiles`).
  virtual void before_attention(const LayerStep& /*step*/, const PassContext& /*pass*/,
                                AttentionContext& /*context*/) {}
  virtual void after_attention(const LayerStep& /*step*/, const PassContext& /*pass*/,
                               const AttentionContext& /*context*/,
                               const AttentionResult& /*result*/) {}
};
using Observers = std::span<LayerObserver* const>;

/// Fills a ForwardInfo. Null: looks at nothing.
class Telemetry final : public LayerObserver {
 public:
  explicit Telemetry(ForwardInfo* info);
  void before_attention(const LayerStep& step, const PassContext& pass,
                        AttentionContext& context) override;
  void after_attention(const LayerStep& step, const PassContext& pass,
                       const AttentionContext& context, const AttentionResult& result) override;

 private:
  ForwardInfo* info_;
};

/// Gathers the losses that mechanisms add to the model's own, with their gradients.
class AddedLosses final : public LayerObserver {
 public:
  void before_attention(const LayerStep& step, const PassContext& pass,
                        AttentionContext& context) override;
  std::span<const at::Tensor> losses() const { return losses_; }

 private:
  std::vector<at::Tensor> losses_;
};

}  // namespace fovea
