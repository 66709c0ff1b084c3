// A mechanism that learns, as the decoder sees it: its parameters, its tensors for a call, its
// state, its telemetry, its objectives.
//
// Adding one takes a file beside this one and a line in mechanisms.cpp. Private to fovea/nn.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/nn/transformer_impl.h"
#include "fovea/nn/walk.h"

namespace fovea {

/// The layer that is being built.
struct LayerBuild {
  ParameterRegistry& registry;
  const ModelConfig& config;
  const AttentionSpec& spec;  // configured
  int64_t index = 0;
  std::string_view mechanism;

  /// Registers "model.layers.<index>.self_attn.<name>", of origin `added`.
  at::Tensor add(std::string_view name, std::vector<int64_t> shape, Init init, bool decay) const;
  /// The same for state: only observe() changes it.
  at::Tensor add_state(std::string_view name, std::vector<int64_t> shape, Init init) const;
};

/// Micro-batches of one optimizer step, of which this rank has some of the rows.
struct ObservedStep {
  std::span<const ForwardInfo> micro_batches;
  size_t layer = 0;
  const ModelConfig& config;
  double ema_decay = 0.0;
  double progress = 0.0;
  Communicator& ranks;
};

/// A loss of the whole model that trains a mechanism's parameters (`train.objective`).
struct MechanismObjective {
  std::string_view name;
  LossResult (*run)(const Transformer::Impl& model, const ModelInput& input,
                    const at::Tensor& targets_bt, double normaliser, ForwardInfo* info);
};

/// Hooks; null where a mechanism has nothing to do.
struct LearnedMechanism {
  std::string_view name;  // in Parameter::mechanism and `train.trainable`
  /// Registers its parameters where the layer's spec has the mechanism, and keeps them in `layer`.
  void (*build)(const LayerBuild& build, LayerWeights& layer) = nullptr;
  /// Its tensors for the call, from the normed input alone. Runs before queries and keys exist:
  /// gradients of the normed input are summed in the order of these hooks.
  void (*before_heads)(LayerStep& step, const PassContext& pass) = nullptr;
  /// Its tensors for the call, where build() could not put them into LayerWeights::stages.
  void (*load)(LayerStep& step, const PassContext& pass) = nullptr;
  /// Telemetry of one layer.
  void (*tell)(const LayerStep& step, const PassContext& pass, const AttentionResult& result,
               ForwardInfo& info) = nullptr;
  /// A loss added to the model's own in training; undefined = none.
  at::Tensor (*added_loss)(const LayerStep& step) = nullptr;
  /// The keys that ask for added_loss(), or "".
  std::string (*added_loss_keys)(const ModelConfig& config) = nullptr;
  /// Whether the layer's state wants to see inputs before training.
  bool (*wants_calibration)(const ModelConfig& config, LayerWeights& layer) = nullptr;
  /// Sets that state from normed inputs [n, c] of the model without the mechanism, of all ranks.
  void (*calibrate)(LayerWeights& layer, const at::Tensor& inputs_nc,
                    Communicator& ranks) = nullptr;
  /// State that learns outside the gradient, once per optimizer step (seam 2).
  void (*observe)(LayerWeights& layer, const ObservedStep& step) = nullptr;
  std::span<const MechanismObjective> objectives = {};
};

/// All of them, in the order in which a layer's parameters are registered.
std::span<const LearnedMechanism> learned_mechanisms();

}  // namespace fovea
