// The learned tensor of a stage of one's own (docs/adding-a-mechanism.md).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/own_stage.h"

#include <ATen/ATen.h>

#include "fovea/nn/mechanisms/mechanism.h"

namespace fovea {

LearnedMechanism learned_own_stage() {
  return {.name = "own", .build = [](const LayerBuild& build, LayerWeights& layer) {
            const std::vector<int64_t> shape = own_weight_shape(build.spec);
            if (shape.empty()) return;
            const double start = own_stage(build.spec.own.name).weight_start;
            layer.stages.own =
                build.add("own.weight", shape, {.kind = Init::Kind::constant, .value = start},
                          build.config.attention.decay_added);
          }};
}

}  // namespace fovea
