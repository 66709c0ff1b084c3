// Routing and given block pairs: keys, checks, clusters, the reference of stage 6.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/routing.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "fovea/attention/places.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

constexpr const char* kWhere = "attention spec";
constexpr double kNormEpsilon = 1e-6, kSmoothing = 1e-5;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor normalised(const at::Tensor& x) {
  const at::Tensor wide = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  return at::layer_norm(wide, {x.size(-1)}, {}, {}, kNormEpsilon);
}

// Keys of a key head for every query head that reads it.
at::Tensor for_query_heads(const at::Tensor& k_bgsd, int64_t heads) {
  return k_bgsd.repeat_interleave(heads / k_bgsd.size(1), 1);
}

}  // namespace

void RoutingSpec::describe(FieldVisitor& v) {
  v.integer({"clusters", "centroids of a head; 0 = no routing (spec 4.3)", {0, 1024}}, clusters);
  v.integer({"keep", "w: keys of its own cluster that a query sees", ranges::kPositionCounts},
            keep);
  v.choice({"choice", "which: the most recent, or those nearest to the centroid"}, choice);
}

void RoutingSpec::check() const {
  require<ConfigError>(clusters >= 0 && clusters <= 1024, kWhere,
                       "routing.clusters must be 0 (off) to 1024; got {}", clusters);
  require<ConfigError>(!active() || keep >= 1, kWhere, "routing.keep must be at least 1; got {}",
                       keep);
}

std::span<const std::string_view> enum_names(RoutingSpec::Choice) {
  static constexpr std::string_view names[] = {"recent", "nearest"};
  return names;
}

void BlockPairsSpec::describe(FieldVisitor& v) {
  v.integer({"size", "positions of a block; 0 = no such rule", ranges::kPositionCounts}, size);
  v.integers({"pairs",
              "visible pairs of blocks: query block, key block, query block, ...",
              {0, (1 << 20) - 1}},
             pairs);
}

void BlockPairsSpec::check() const {
  require<ConfigError>(size >= 0, kWhere, "blocks.size must be 0 (off) or larger; got {}", size);
  require<ConfigError>(active() || pairs.empty(), kWhere,
                       "blocks.pairs need blocks.size; got {} numbers", pairs.size());
  require<ConfigError>(pairs.size() % 2 == 0, kWhere,
                       "blocks.pairs are pairs of a query block and a key block; got {} numbers",
                       pairs.size());
  for (const int64_t block : pairs)
    require<ConfigError>(block >= 0 && block < 1 << 20, kWhere,
                         "blocks.pairs number blocks from 0; got {}", block);
}

Routes route_tokens(const RoutingSpec& spec, const at::Tensor& centroids, const at::Tensor& q,
                    const at::Tensor& k) {
  const at::NoGradGuard no_gradient;
  const auto scores = [&](const at::Tensor& x_bhtd) {
    const at::Tensor x = normalised(x_bhtd);
    return at::matmul(x, centroids.to(x.scalar_type()).transpose(1, 2));
  };
  Routes routes{.query_bht = scores(q.detach()).argmax(-1)};
  const auto [nearness, nearest] = scores(for_query_heads(k.detach(), q.size(1))).max(-1);
  routes.key_bhs = nearest;
  if (spec.reads_nearness()) routes.nearness_bhs = nearness;
  return routes;
}

RoutingObservation observe_routes(const Routes& routes, int64_t clusters, const at::Tensor& q,
                                  const at::Tensor& k) {
  const at::NoGradGuard no_gradient;
  RoutingObservation seen;
  for (const auto& [x, cluster] :
       {std::pair{normalised(q.detach()), routes.query_bht},
        {normalised(for_query_heads(k.detach(), q.size(1))), routes.key_bhs}}) {
    const at::Tensor one_hot = at::one_hot(cluster, clusters).to(x.scalar_type());
    const at::Tensor counts = one_hot.sum(at::IntArrayRef{0, 2}),
                     sums = at::matmul(one_hot.transpose(2, 3), x).sum(0);
    seen.counts_hc = seen.defined() ? seen.counts_hc + counts : counts;
    seen.sums_hcd = seen.sums_hcd.defined() ? seen.sums_hcd + sums : sums;
  }
  return seen;
}

at::Tensor follow_clusters(const RoutingObservation& seen, double decay, const at::Tensor& sizes,
                           const at::Tensor& sums) {
  const at::NoGradGuard no_gradient;
  sizes.mul_(decay).add_(seen.counts_hc.to(sizes.options()), 1.0 - decay);
  sums.mul_(decay).add_(seen.sums_hcd.to(sums.options()), 1.0 - decay);
  const at::Tensor total = sizes.sum(-1, true);
  const double clusters = static_cast<double>(sizes.size(-1));
  const at::Tensor smooth = (sizes + kSmoothing) / (total + clusters * kSmoothing) * total;
  return sums / smooth.unsqueeze(-1);
}

at::Tensor routing_visible(const RoutingSpec& spec, const AttentionTensors& tensors,
                           int64_t first_row, const at::Tensor& allowed, const Places& places) {
  const at::Tensor queries = tensors.query_routes_bht.narrow(2, first_row, allowed.size(2));
  const at::Tensor seen =
      queries.unsqueeze(3).eq(tensors.key_routes_bhs.unsqueeze(2)).logical_and(allowed);
  if (seen.size(3) <= spec.keep) return seen;
  const at::Tensor score = spec.reads_nearness()
                               ? tensors.key_nearness_bhs.unsqueeze(2).to(at::kDouble)
                               : places.key_positions_bs.unsqueeze(1).unsqueeze(1).to(at::kDouble);
  // The first `keep` of a descending order; later keys first among equals.
  const at::Tensor order = score.expand(seen.sizes())
                               .masked_fill(seen.logical_not(), -kInfinity)
                               .flip(-1)
                               .argsort(/*stable=*/true, -1, /*descending=*/true)
                               .narrow(-1, 0, spec.keep);
  return at::zeros_like(seen).scatter_(-1, order, true).flip(-1).logical_and(seen);
}

at::Tensor block_pairs_visible(const BlockPairsSpec& spec, const at::Tensor& allowed,
                               const Places& places) {
  int64_t blocks = 0;
  for (const int64_t block : spec.pairs) blocks = std::max(blocks, block + 1);
  // One row and column more, which nobody sees, stands for all later blocks.
  at::Tensor table = at::zeros({blocks + 1, blocks + 1}, at::kBool);
  for (size_t n = 0; n + 1 < spec.pairs.size(); n += 2)
    table.mutable_data_ptr<bool>()[spec.pairs[n] * (blocks + 1) + spec.pairs[n + 1]] = true;
  const auto block_of = [&](const at::Tensor& positions) {
    return positions.div(spec.size, "floor").clamp(0, blocks);
  };
  const at::Tensor entry = block_of(places.query_positions_bt).unsqueeze(2) * (blocks + 1) +
                           block_of(places.key_positions_bs).unsqueeze(1);
  return table.flatten().to(entry.device()).index({entry}).unsqueeze(1).logical_and(allowed);
}

}  // namespace fovea
