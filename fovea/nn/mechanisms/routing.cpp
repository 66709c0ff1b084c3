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

// State of a layer's clusters; no gradient reaches it (spec 4.3).
struct LayerRouting {
  at::Tensor centroids_hcd, sizes_hc, sums_hcd;
};

// What the layers of a pass saw, by layer.
using RoutingObservations = std::vector<RoutingObservation>;

void build_routing(const LayerBuild& build, LayerWeights& layer) {
  if (!build.spec.routing.active()) return;
  const int64_t h = build.spec.heads, c = build.spec.routing.clusters, d = build.spec.head_dim;
  // Gaussian directions of length 1, in clusters of one token.
  at::Tensor start = at::empty({h, c, d}, at::kFloat);
  initialise(start, {.kind = Init::Kind::normal, .value = 1.0}, build.registry.seed(),
             fmt::format("model.layers.{}.self_attn.routing.centroids", build.index));
  start = start / at::linalg_vector_norm(start, 2, at::IntArrayRef{-1}, true);
  const Init given{.kind = Init::Kind::given, .start = start};
  layer.states.of<LayerRouting>() = {
      .centroids_hcd = build.add_state("routing.centroids", {h, c, d}, given),
      .sizes_hc = build.add_state("routing.sizes", {h, c}, {.kind = Init::Kind::ones}),
      .sums_hcd = build.add_state("routing.sums", {h, c, d}, given)};
}

void load_routes(LayerStep& step, const PassContext& /*pass*/) {
  const LayerRouting* state = step.layer.states.find<LayerRouting>();
  if (state == nullptr) return;
  Routes& routes = step.made.of<Routes>();
  routes = route_tokens(step.layer.spec.routing, state->centroids_hcd, step.heads.plain_q_bhtd,
                        step.heads.plain_k_bgtd);
  step.tensors.query_routes_bht = routes.query_bht;
  step.tensors.key_routes_bhs = routes.key_bhs;
  step.tensors.key_nearness_bhs = routes.nearness_bhs;
}

void tell_routing(const LayerStep& step, const PassContext& /*pass*/,
                  const AttentionResult& /*result*/, ForwardInfo& info) {
  const Routes* routes = step.made.find<Routes>();
  if (routes == nullptr) return;
  RoutingObservations& seen = info.observed.of<RoutingObservations>();
  seen.resize(static_cast<size_t>(step.config.layers));
  seen[static_cast<size_t>(step.index)] = observe_routes(
      *routes, step.spec.routing.clusters, step.heads.plain_q_bhtd, step.heads.plain_k_bgtd);
}

void follow_routes(LayerWeights& layer, const ObservedStep& step) {
  if (layer.states.find<LayerRouting>() == nullptr) return;
  LayerRouting& state = layer.states.of<LayerRouting>();
  RoutingObservation all;
  for (const ForwardInfo& info : step.micro_batches) {
    const RoutingObservations* seen = info.observed.find<RoutingObservations>();
    if (seen == nullptr || !(*seen)[step.layer].defined()) continue;
    const RoutingObservation& part = (*seen)[step.layer];
    all.counts_hc = all.defined() ? all.counts_hc + part.counts_hc : part.counts_hc;
    all.sums_hcd = all.sums_hcd.defined() ? all.sums_hcd + part.sums_hcd : part.sums_hcd;
  }
  if (!all.defined()) return;
  const at::NoGradGuard no_gradient;
  state.centroids_hcd.copy_(
      follow_clusters(all, step.config.attention.routing.decay, state.sizes_hc, state.sums_hcd));
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
