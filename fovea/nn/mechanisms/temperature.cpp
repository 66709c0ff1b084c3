// Focal Attention: the parameters of a learned temperature (spec 10).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "fovea/nn/mechanisms/mechanism.h"

namespace fovea {
namespace {

void build_temperature(const LayerBuild& build, LayerWeights& layer) {
  const TemperatureSpec& spec = build.spec.temperature;
  if (spec.kind != TemperatureSpec::Kind::learned) return;
  const auto start = [](double value) { return Init{Init::Kind::constant, value, 1.0}; };
  if (spec.form != TemperatureSpec::Form::global) {
    layer.temperature.weight_c =
        build.add("temperature.weight", {build.config.width}, start(0.0), false);
  }
  layer.temperature.bias = build.add(
      "temperature.bias", {}, start(initial_temperature_bias(spec, build.config.head_dim)), false);
}

void load_temperature(LayerStep& step, const PassContext& pass) {
  const TemperatureSpec& spec = step.layer.spec.temperature;
  if (spec.kind != TemperatureSpec::Kind::learned) return;
  const TemperatureRows rows = step.keys.temperature(
      spec, step.config.head_dim, step.layer.temperature, step.y, pass.attention);
  step.tensors.tau_bt = rows.tau_bt;
  step.clipped_share = rows.clipped_share;
}

void tell_temperature(const LayerStep& step, const PassContext& /*pass*/,
                      const AttentionResult& /*result*/, ForwardInfo& info) {
  info.temperature.push_back(step.temperature());
  if (step.clipped_share.defined())
    info.clipped_shares.emplace_back(step.clipped_share.to(at::kDouble) /
                                     static_cast<double>(step.config.layers));
}

}  // namespace

LearnedMechanism learned_temperature() {
  return {.name = "temperature",
          .build = build_temperature,
          .before_heads = load_temperature,
          .tell = tell_temperature};
}

}  // namespace fovea
