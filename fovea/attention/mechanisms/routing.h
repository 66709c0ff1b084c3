// Routing attention in its causal form: clusters of queries and keys, their centroids, and the keys
// that a query sees (spec 4.3).
//
// A head compares its queries, and the keys that it reads, with centroids of its own. The cluster
// of a token depends on this token alone, so decoding and training see the same clusters. A query
// sees `keep` keys of its own cluster and no others, so a row costs O(keep) at any length.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "fovea/attention/specs/routing.h"

namespace fovea {

/// Clusters of tokens for every query head, as AttentionTensors holds them.
struct Routes {
  at::Tensor query_bht, key_bhs;  ///< int64
  at::Tensor nearness_bhs;        ///< x.mu of keys and their centroid; undefined unless asked for
};

/// The nearest centroid of every query [b, h, t, d] and key [b, g, s, d] before their rotation,
/// both LayerNormed without gain (eps 1e-6). Centroids [h, c, d]; distance -x.mu; ties go to the
/// lower index. No gradient.
Routes route_tokens(const RoutingSpec& spec, const at::Tensor& centroids_hcd,
                    const at::Tensor& q_bhtd, const at::Tensor& k_bgsd);

/// Number and sum of the normalised queries and keys of every cluster: what centroids follow.
struct RoutingObservation {
  at::Tensor counts_hc, sums_hcd;

  bool defined() const { return counts_hc.defined(); }
};
RoutingObservation observe_routes(const Routes& routes, int64_t clusters, const at::Tensor& q_bhtd,
                                  const at::Tensor& k_bgsd);

/// Running sizes [h, c] and sums [h, c, d] of clusters follow an observation; returns the
/// centroids: sums over sizes, Laplace-smoothed with 1e-5.
at::Tensor follow_clusters(const RoutingObservation& seen, double decay, const at::Tensor& sizes_hc,
                           const at::Tensor& sums_hcd);

}  // namespace fovea
