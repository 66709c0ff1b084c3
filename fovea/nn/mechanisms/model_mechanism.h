// The settings of a model around those of a mechanism, as the configuration reads and checks them.
//
// Each mechanism that has such settings defines their members and one ModelMechanism in its file
// beside this one; mechanisms.cpp lists them. Private to fovea/nn.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fovea/attention/mechanism.h"
#include "fovea/nn/model_config.h"

namespace fovea {

struct LayerStep;    // walk.h
struct PassContext;  // walk.h

/// A mechanism with settings of the model around its own, under one name; or one that the model
/// checks and gives tensors, although it learns nothing. Hooks are null where there is nothing to
/// do.
struct ModelMechanism {
  const Mechanism& (*mechanism)();
  const char* help = nullptr;
  /// Visits the settings; null: the mechanism's own are all.
  void (*describe)(AttentionSettings& all, FieldVisitor& v) = nullptr;
  void (*check)(const ModelConfig& config);
  void (*apply)(const AttentionSettings& all, int64_t layer, AttentionSpec& spec) = nullptr;
  void (*reset)(AttentionSettings& all) = nullptr;
  /// Its tensors for the call.
  void (*load)(LayerStep& step, const PassContext& pass) = nullptr;
};

/// `keys`: the mechanism's member of AttentionSpec; `settings`: the model's, of AttentionSettings.
template <auto keys, auto settings>
constexpr ModelMechanism model_mechanism(const Mechanism& (*mechanism)(), const char* help) {
  return {.mechanism = mechanism,
          .help = help,
          .describe =
              [](AttentionSettings& all, FieldVisitor& v) {
                (all.spec.*keys).describe(v);
                (all.*settings).describe(v);
              },
          .check =
              [](const ModelConfig& config) {
                (config.attention.*settings).check(config.attention.spec.*keys, config.layers);
              },
          .apply = [](const AttentionSettings& all, int64_t layer,
                      AttentionSpec& spec) { (all.*settings).apply(layer, spec); },
          .reset = [](AttentionSettings& all) { all.*settings = {}; }};
}

/// All of them.
std::span<const ModelMechanism> model_mechanisms();

/// ConfigError unless `model.KEY` is `low` to `high`.
void check_range(const char* key, int64_t value, int64_t low, int64_t high);

/// Whether a list of layers, empty for all, has this one.
bool in_layers(const std::vector<int64_t>& layers, int64_t layer);

}  // namespace fovea
