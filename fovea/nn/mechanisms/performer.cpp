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
#include "fovea/nn/host_copy.h"
#include "fovea/nn/mechanisms/mechanism.h"
#include "fovea/nn/mechanisms/model_mechanism.h"

namespace fovea {
namespace {

// Steps since the features were drawn; undefined where they stay.
struct StepsSinceDraw {
  at::Tensor steps;
  HostCopy steps_here, features_here;
};

void build_features(const LayerBuild& build, LayerWeights& layer) {
  const PerformerSpec& spec = build.spec.performer;
  if (!spec.active()) return;
  const uint64_t seed =
      mix_seed(build.registry.seed(), fingerprint(fmt::format("performer {}", build.index)));
  layer.stages.features_md = build.add_state(
      "performer.features", {spec.features, build.spec.head_dim},
      {.kind = Init::Kind::given, .start = draw_features(spec, build.spec.head_dim, seed)});
  if (build.config.attention.performer.redraw > 0)
    layer.states.of<StepsSinceDraw>().steps =
        build.add_state("performer.steps", {}, {.kind = Init::Kind::zeros});
}

void redraw(LayerWeights& layer, const ObservedStep& step) {
  if (layer.states.find<StepsSinceDraw>() == nullptr) return;
  StepsSinceDraw& state = layer.states.of<StepsSinceDraw>();
  const at::NoGradGuard no_gradient;
  const at::Tensor steps = state.steps_here.of(state.steps) + 1.0;
  if (std::llround(steps.item<double>()) < step.config.attention.performer.redraw)
    return state.steps_here.write(state.steps, steps);
  const at::Tensor& features = layer.stages.features_md;
  state.features_here.write(
      features, redraw_features(layer.spec.performer, state.features_here.of(features)));
  state.steps_here.write(state.steps, at::zeros_like(steps));
}

}  // namespace

void PerformerSettings::describe(FieldVisitor& v) {
  v.integers({"layers", "layers with performer, counted from 0; empty: all", ranges::kLayerIndices},
             layers);
  v.integer({"redraw", "optimizer steps between draws of the features; 0 = one draw for good",
             ranges::kSteps},
            redraw);
}

void PerformerSettings::check(const PerformerSpec& rule, int64_t model_layers) const {
  for (const int64_t layer : layers)
    check_range("attention.performer.layers", layer, 0, model_layers - 1);
  require<ConfigError>(rule.active() || *this == PerformerSettings{}, "model",
                       "'model.attention.performer' needs 'features' above 0");
}

void PerformerSettings::apply(int64_t layer, AttentionSpec& spec) const {
  if (!in_layers(layers, layer)) spec.performer = {};
}

ModelMechanism model_performer() {
  return model_mechanism<&AttentionSpec::performer, &AttentionSettings::performer>(
      performer_mechanism, "Performer: random features for the softmax");
}

LearnedMechanism learned_performer() {
  return {.name = "performer", .build = build_features, .observe = redraw};
}

}  // namespace fovea
