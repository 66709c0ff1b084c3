// Routing inside the decoder: the clusters of a layer's heads and what they follow (spec 4.3).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "fovea/nn/transformer_impl.h"

namespace fovea {

LayerRouting Transformer::Impl::add_routing(const AttentionSpec& spec, int64_t layer,
                                            uint64_t seed) {
  const int64_t h = spec.heads, c = spec.routing.clusters, d = spec.head_dim;
  const auto add = [&](const char* name, std::vector<int64_t> shape, Init init) {
    return registry
        .add({.name = fmt::format("model.layers.{}.self_attn.routing.{}", layer, name),
              .origin = Parameter::Origin::added,
              .decay = false,
              .state = true,
              .init = std::move(init)},
             shape, seed, device)
        .value;
  };
  // Gaussian directions of length 1, in clusters of one token.
  at::Tensor start = at::empty({h, c, d}, at::kFloat);
  initialise(start, {.kind = Init::Kind::normal, .value = 1.0}, seed,
             fmt::format("model.layers.{}.self_attn.routing.centroids", layer));
  start = start / at::linalg_vector_norm(start, 2, at::IntArrayRef{-1}, true);
  const Init given{.kind = Init::Kind::given, .start = start};
  return {.centroids_hcd = add("centroids", {h, c, d}, given),
          .sizes_hc = add("sizes", {h, c}, {.kind = Init::Kind::ones}),
          .sums_hcd = add("sums", {h, c, d}, given)};
}

Routes Transformer::Impl::route(const LayerWeights& w, const Heads& heads,
                                AttentionTensors& tensors) const {
  Routes routes =
      route_tokens(w.spec.routing, w.routing.centroids_hcd, heads.plain_q_bhtd, heads.plain_k_bgtd);
  tensors.query_routes_bht = routes.query_bht;
  tensors.key_routes_bhs = routes.key_bhs;
  tensors.key_nearness_bhs = routes.nearness_bhs;
  return routes;
}

void follow_routes(LayerRouting& routing, std::span<const ForwardInfo> micro_batches, size_t layer,
                   double decay) {
  RoutingObservation all;
  for (const ForwardInfo& info : micro_batches) {
    if (layer >= info.routing.size() || !info.routing[layer].defined()) continue;
    const RoutingObservation& part = info.routing[layer];
    all.counts_hc = all.defined() ? all.counts_hc + part.counts_hc : part.counts_hc;
    all.sums_hcd = all.sums_hcd.defined() ? all.sums_hcd + part.sums_hcd : part.sums_hcd;
  }
  if (!all.defined()) return;
  const at::NoGradGuard no_gradient;
  routing.centroids_hcd.copy_(follow_clusters(all, decay, routing.sizes_hc, routing.sums_hcd));
}

}  // namespace fovea
