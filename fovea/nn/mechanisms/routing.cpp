// Routing inside the decoder: the clusters of a layer's heads and what they follow (spec 4.3).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/routing.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "fovea/nn/mechanisms/mechanism.h"
#include "fovea/nn/mechanisms/model_mechanism.h"

namespace fovea {
namespace {

void build_routing(const LayerBuild& build, LayerWeights& layer) {
  if (!build.spec.routing.active()) return;
  const int64_t h = build.spec.heads, c = build.spec.routing.clusters, d = build.spec.head_dim;
  // Gaussian directions of length 1, in clusters of one token.
  at::Tensor start = at::empty({h, c, d}, at::kFloat);
  initialise(start, {.kind = Init::Kind::normal, .value = 1.0}, build.registry.seed(),
             fmt::format("model.layers.{}.self_attn.routing.centroids", build.index));
  start = start / at::linalg_vector_norm(start, 2, at::IntArrayRef{-1}, true);
  const Init given{.kind = Init::Kind::given, .start = start};
  layer.routing = {.centroids_hcd = build.add_state("routing.centroids", {h, c, d}, given),
                   .sizes_hc = build.add_state("routing.sizes", {h, c}, {.kind = Init::Kind::ones}),
                   .sums_hcd = build.add_state("routing.sums", {h, c, d}, given)};
}

void load_routes(LayerStep& step, const PassContext& /*pass*/) {
  if (!step.layer.routing.defined()) return;
  step.routes = route_tokens(step.layer.spec.routing, step.layer.routing.centroids_hcd,
                             step.heads.plain_q_bhtd, step.heads.plain_k_bgtd);
  step.tensors.query_routes_bht = step.routes.query_bht;
  step.tensors.key_routes_bhs = step.routes.key_bhs;
  step.tensors.key_nearness_bhs = step.routes.nearness_bhs;
}

void tell_routing(const LayerStep& step, const PassContext& /*pass*/,
                  const AttentionResult& /*result*/, ForwardInfo& info) {
  if (!step.routes.query_bht.defined()) return;
  info.routing.resize(static_cast<size_t>(step.config.layers));
  info.routing[static_cast<size_t>(step.index)] = observe_routes(
      step.routes, step.spec.routing.clusters, step.heads.plain_q_bhtd, step.heads.plain_k_bgtd);
}

void follow_routes(LayerWeights& layer, const ObservedStep& step) {
  if (!layer.routing.defined()) return;
  RoutingObservation all;
  for (const ForwardInfo& info : step.micro_batches) {
    if (step.layer >= info.routing.size() || !info.routing[step.layer].defined()) continue;
    const RoutingObservation& part = info.routing[step.layer];
    all.counts_hc = all.defined() ? all.counts_hc + part.counts_hc : part.counts_hc;
    all.sums_hcd = all.sums_hcd.defined() ? all.sums_hcd + part.sums_hcd : part.sums_hcd;
  }
  if (!all.defined()) return;
  const at::NoGradGuard no_gradient;
  layer.routing.centroids_hcd.copy_(follow_clusters(
      all, step.config.attention.routing.decay, layer.routing.sizes_hc, layer.routing.sums_hcd));
}

}  // namespace

void RoutingSettings::describe(FieldVisitor& v) {
  v.integers({"layers", "layers with routing, counted from 0; empty: all", ranges::kLayerIndices},
             layers);
  v.real({"decay", "EMA of the clusters' sizes and sums, once a step", ranges::kBelowOne}, decay);
}

void RoutingSettings::check(const RoutingSpec& rule, int64_t model_layers) const {
  for (const int64_t layer : layers)
    check_range("attention.routing.layers", layer, 0, model_layers - 1);
  require<ConfigError>(rule.active() || (rule == RoutingSpec{} && *this == RoutingSettings{}),
                       "model", "'model.attention.routing' needs 'clusters' above 0");
}

void RoutingSettings::apply(int64_t layer, AttentionSpec& spec) const {
  if (!in_layers(layers, layer)) spec.routing = {};
}

ModelMechanism model_routing() {
  return model_mechanism<&AttentionSpec::routing, &AttentionSettings::routing>(
      routing_mechanism, "Routing: a query sees keys of its own cluster");
}

LearnedMechanism learned_routing() {
  return {.name = "routing",
          .build = build_routing,
          .load = load_routes,
          .tell = tell_routing,
          .observe = follow_routes};
}

}  // namespace fovea
