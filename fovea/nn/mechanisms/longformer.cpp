// Longformer's projections of global rows, which start as copies of the layer's own (spec 4.1).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "fovea/nn/mechanisms/mechanism.h"
#include "fovea/nn/mechanisms/model_mechanism.h"

namespace fovea {
namespace {

void build_projections(const LayerBuild& build, LayerWeights& layer) {
  if (!build.spec.longformer.projections) return;
  // The copy is drawn after the base's weights are there (ParameterRegistry::draw()).
  const auto copy = [&](const char* name, const at::Tensor& of, bool decay) {
    if (!of.defined()) return at::Tensor();
    return build.add(name, of.sizes().vec(), {.kind = Init::Kind::given, .start = of}, decay);
  };
  const bool decay = build.config.attention.decay_added;
  layer.globals = {.wq = copy("global_q_proj.weight", layer.wq, decay),
                   .wk = copy("global_k_proj.weight", layer.wk, decay),
                   .wv = copy("global_v_proj.weight", layer.wv, decay),
                   .bq = copy("global_q_proj.bias", layer.bq, false),
                   .bk = copy("global_k_proj.bias", layer.bk, false),
                   .bv = copy("global_v_proj.bias", layer.bv, false)};
}

void load_globals(LayerStep& step, const PassContext& pass) {
  const GlobalProjections& g = step.layer.globals;
  if (!g.defined()) return;
  const at::Tensor qkv =
      stacked_linear(step.y, {g.wq, g.wk, g.wv}, {g.bq, g.bk, g.bv}, step.compute.activations);
  const Heads heads = heads_of(step.config, step.layer, qkv, pass);
  step.tensors.global_q_bhtd = heads.q_bhtd;
  step.tensors.global_k_bgsd = heads.k_bgtd;
  step.tensors.global_v_bgse = heads.v_bgtd;
}

}  // namespace

void LongformerSettings::describe(FieldVisitor& v) {
  v.integers(
      {"layers", "layers with longformer, counted from 0; empty: all", ranges::kLayerIndices},
      layers);
  v.integers({"windows", "window of each layer of the model; empty: window in all",
              ranges::kPositionCounts},
             windows);
}

void LongformerSettings::check(const LongformerSpec& rule, int64_t model_layers) const {
  for (const int64_t layer : layers)
    check_range("attention.longformer.layers", layer, 0, model_layers - 1);
  require<ConfigError>(windows.empty() || std::ssize(windows) == model_layers, "model",
                       "'model.attention.longformer.windows' needs one value a layer ({}); got {}",
                       model_layers, windows.size());
  for (const int64_t window : windows)
    check_range("attention.longformer.windows", window, 1, ranges::kMostPositions);
  require<ConfigError>(rule.active() || *this == LongformerSettings{}, "model",
                       "'model.attention.longformer' needs 'window' above 0");
}

void LongformerSettings::apply(int64_t layer, AttentionSpec& spec) const {
  if (!in_layers(layers, layer)) {
    spec.longformer = {};
  } else if (!windows.empty()) {
    spec.longformer.window = windows[static_cast<size_t>(layer)];
  }
}

ModelMechanism model_longformer() {
  ModelMechanism mechanism =
      model_mechanism<&AttentionSpec::longformer, &AttentionSettings::longformer>(
          longformer_mechanism, "Longformer: window, dilation and global tokens");
  mechanism.check = [](const ModelConfig& c) {
    const LongformerSpec& rule = c.attention.spec.longformer;
    c.attention.longformer.check(rule, c.layers);
    for (const int64_t position : rule.global_positions)
      check_range("attention.longformer.global_positions", position, 0, c.context - 1);
  };
  return mechanism;
}

LearnedMechanism learned_longformer() {
  return {.name = "longformer", .build = build_projections, .load = load_globals};
}

}  // namespace fovea
