// Performer inside the decoder: the features of a layer, and when they are drawn anew (spec 4.2).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "fovea/attention/mechanisms/performer_features.h"
#include "fovea/base/files.h"
#include "fovea/base/rng.h"
#include "fovea/nn/mechanisms/mechanism.h"

namespace fovea {
namespace {

void build_features(const LayerBuild& build, LayerWeights& layer) {
  const PerformerSpec& spec = build.spec.performer;
  if (!spec.active()) return;
  const uint64_t seed =
      mix_seed(build.registry.seed(), fingerprint(fmt::format("performer {}", build.index)));
  layer.stages.features_md = build.add_state(
      "performer.features", {spec.features, build.spec.head_dim},
      {.kind = Init::Kind::given, .start = draw_features(spec, build.spec.head_dim, seed)});
  if (build.config.attention.performer.redraw > 0)
    layer.performer_steps = build.add_state("performer.steps", {}, {.kind = Init::Kind::zeros});
}

void redraw(LayerWeights& layer, const ObservedStep& step) {
  if (!layer.performer_steps.defined()) return;
  const at::NoGradGuard no_gradient;
  layer.performer_steps.add_(1.0);
  const int64_t steps = std::llround(layer.performer_steps.item<double>());
  if (steps < step.config.attention.performer.redraw) return;
  at::Tensor& features = layer.stages.features_md;
  features.copy_(redraw_features(layer.spec.performer, features));
  layer.performer_steps.zero_();
}

}  // namespace

LearnedMechanism learned_performer() {
  return {.name = "performer", .build = build_features, .observe = redraw};
}

}  // namespace fovea
