// The end of each head: the gain of its norm, which starts at 1, and its gate.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <cmath>

#include "fovea/nn/mechanisms/mechanism.h"

namespace fovea {
namespace {

void build_head_output(const LayerBuild& build, LayerWeights& layer) {
  const HeadOutputSpec& output = build.spec.head_output;
  const bool decay = build.config.attention.decay_added;
  const int64_t e = build.spec.value_width();
  AttentionTensors& x = layer.stages;
  if (output.norm != HeadOutputSpec::Norm::none)
    x.head_gain_e = build.add("head_norm.weight", {e}, {.kind = Init::Kind::ones}, decay);
  if (output.gate == HeadOutputSpec::Gate::none) return;
  const bool full = output.gate == HeadOutputSpec::Gate::full;
  const double std = 1.0 / std::sqrt(static_cast<double>(build.config.width));
  x.gate_weight = build.add("head_gate.weight", full ? std::vector{e, e} : std::vector{e},
                            {.kind = Init::Kind::truncated_normal, .value = std}, decay);
  x.gate_bias =
      build.add("head_gate.bias", full ? std::vector{e} : std::vector<int64_t>{}, {}, false);
}

}  // namespace

LearnedMechanism learned_head_output() {
  return {.name = "head_output", .build = build_head_output};
}

}  // namespace fovea
