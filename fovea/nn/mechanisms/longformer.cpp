// Longformer's projections of global rows, which start as copies of the layer's own (spec 4.1).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "fovea/nn/mechanisms/mechanism.h"

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

LearnedMechanism learned_longformer() {
  return {.name = "longformer", .build = build_projections, .load = load_globals};
}

}  // namespace fovea
