// The sink logit of every head: one learned number that joins the softmax with value 0 (spec 7.5).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "fovea/nn/mechanisms/mechanism.h"

namespace fovea {

LearnedMechanism learned_sink_logit() {
  return {.name = "sink_logit", .build = [](const LayerBuild& build, LayerWeights& layer) {
            if (!build.spec.sink_logit) return;
            layer.stages.sink_logit_h = build.add("sinks", {build.spec.heads}, {}, false);
          }};
}

}  // namespace fovea
