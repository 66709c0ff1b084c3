// The lists of mechanisms that learn, and of those with settings of the model around them.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "fovea/base/error.h"
#include "fovea/nn/mechanisms/mechanism.h"
#include "fovea/nn/mechanisms/model_mechanism.h"

namespace fovea {

// One file each, beside this one.
LearnedMechanism learned_sink_logit();
LearnedMechanism learned_kv_shift();
LearnedMechanism learned_own_stage();
LearnedMechanism learned_multi_token();
LearnedMechanism learned_head_mix();
LearnedMechanism learned_differential();
LearnedMechanism learned_head_output();
LearnedMechanism learned_focus();
LearnedMechanism learned_routing();
LearnedMechanism learned_performer();
LearnedMechanism learned_longformer();
LearnedMechanism learned_temperature();

ModelMechanism model_multi_token();
ModelMechanism model_focus();
ModelMechanism model_routing();
ModelMechanism model_longformer();
ModelMechanism model_performer();
ModelMechanism model_magic_pig();
ModelMechanism model_streaming();

std::span<const LearnedMechanism> learned_mechanisms() {
  static const std::array all{
      learned_sink_logit(), learned_kv_shift(),     learned_own_stage(),   learned_multi_token(),
      learned_head_mix(),   learned_differential(), learned_head_output(), learned_focus(),
      learned_routing(),    learned_performer(),    learned_longformer(),  learned_temperature(),
  };
  return all;
}

std::span<const ModelMechanism> model_mechanisms() {
  static const std::array all{
      model_multi_token(), model_focus(),     model_routing(),   model_longformer(),
      model_performer(),   model_magic_pig(), model_streaming(),
  };
  return all;
}

void check_range(const char* key, int64_t value, int64_t low, int64_t high) {
  require<ConfigError>(value >= low && value <= high, "model",
                       "'model.{}' must be {} to {}; got {}", key, low, high, value);
}

bool in_layers(const std::vector<int64_t>& layers, int64_t layer) {
  return layers.empty() || std::ranges::find(layers, layer) != layers.end();
}

namespace {

std::string name_in_layer(const LayerBuild& build, std::string_view name) {
  return fmt::format("model.layers.{}.self_attn.{}", build.index, name);
}

}  // namespace

at::Tensor LayerBuild::add(std::string_view name, std::vector<int64_t> shape, Init init,
                           bool decay) const {
  return registry
      .add({.name = name_in_layer(*this, name),
            .origin = Parameter::Origin::added,
            .mechanism = mechanism,
            .decay = decay,
            .init = std::move(init)},
           shape)
      .value;
}

at::Tensor LayerBuild::add_state(std::string_view name, std::vector<int64_t> shape,
                                 Init init) const {
  return registry
      .add({.name = name_in_layer(*this, name),
            .origin = Parameter::Origin::added,
            .mechanism = mechanism,
            .decay = false,
            .state = true,
            .init = std::move(init)},
           shape)
      .value;
}

}  // namespace fovea
