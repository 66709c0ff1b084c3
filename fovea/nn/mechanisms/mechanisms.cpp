// The list of mechanisms that learn.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "fovea/nn/mechanisms/mechanism.h"

namespace fovea {

// One file each, beside this one.
LearnedMechanism sink_logit_mechanism();
LearnedMechanism own_stage_mechanism();
LearnedMechanism multi_token_mechanism();
LearnedMechanism head_mix_mechanism();
LearnedMechanism differential_mechanism();
LearnedMechanism head_output_mechanism();
LearnedMechanism focus_mechanism();
LearnedMechanism routing_mechanism();
LearnedMechanism temperature_mechanism();

std::span<const LearnedMechanism> learned_mechanisms() {
  static const std::array all{
      sink_logit_mechanism(), own_stage_mechanism(),    multi_token_mechanism(),
      head_mix_mechanism(),   differential_mechanism(), head_output_mechanism(),
      focus_mechanism(),      routing_mechanism(),      temperature_mechanism(),
  };
  return all;
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
           shape, seed, device)
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
           shape, seed, device)
      .value;
}

}  // namespace fovea
