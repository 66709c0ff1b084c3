// Routing: keys, checks, clusters, the reference of stage 6.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/routing.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>

#include "fovea/attention/call.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/pipeline.h"
#include "fovea/attention/places.h"
#include "fovea/attention/stage_rows.h"
#include "fovea/attention/stream_rows.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

constexpr double kNormEpsilon = 1e-6, kSmoothing = 1e-5;

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
  require<ConfigError>(clusters >= 0 && clusters <= 1024, kSpecPlace,
                       "routing.clusters must be 0 (off) to 1024; got {}", clusters);
  require<ConfigError>(!active() || keep >= 1, kSpecPlace,
                       "routing.keep must be at least 1; got {}", keep);
}

std::span<const std::string_view> enum_names(RoutingSpec::Choice) {
  static constexpr std::string_view names[] = {"recent", "nearest"};
  return names;
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

namespace {

std::vector<StageUse> routing_uses(const AttentionSpec& spec) {
  const RoutingSpec& r = spec.routing;
  if (!r.active()) return {};
  return {{.stage = StageId::allowed,
           .setting =
               fmt::format("routing {} {} of {} clusters", enum_name(r.choice), r.keep, r.clusters),
           .why_not_sdpa = "the clusters of routing are of this layer alone"}};
}

at::Tensor routing_visible(const at::Tensor& allowed, const StageRows& rows) {
  const RoutingSpec& spec = rows.call.spec.routing;
  if (!spec.active()) return allowed;
  const AttentionTensors& tensors = rows.call.tensors;
  const Places& places = rows.places;
  const at::Tensor queries = tensors.query_routes_bht.narrow(2, rows.rows.begin, rows.rows.size());
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

std::string clusters_of(const AttentionSpec& spec) {
  return fmt::format("routing.clusters {}", spec.routing.clusters);
}

constexpr TensorSlot kRoutingTensors[] = {
    {.name = "query_routes",
     .member = &AttentionTensors::query_routes_bht,
     .sizes = [](const AttentionSpec& spec, const CallShape& shape) -> Sizes {
       if (!(spec.routing.active())) return std::nullopt;
       return std::vector<int64_t>{shape.batch, spec.heads, shape.queries};
     },
     .setting = [](const AttentionSpec& spec) { return clusters_of(spec); },
     .integers = true,
     .token_axis = 2},
    {.name = "key_routes",
     .member = &AttentionTensors::key_routes_bhs,
     .sizes = [](const AttentionSpec& spec, const CallShape& shape) -> Sizes {
       if (!(spec.routing.active())) return std::nullopt;
       return std::vector<int64_t>{shape.batch, spec.heads, shape.keys};
     },
     .setting = [](const AttentionSpec& spec) { return clusters_of(spec); },
     .integers = true,
     .token_axis = 2},
    {.name = "key_nearness",
     .member = &AttentionTensors::key_nearness_bhs,
     .sizes = [](const AttentionSpec& spec, const CallShape& shape) -> Sizes {
       if (!(spec.routing.reads_nearness())) return std::nullopt;
       return std::vector<int64_t>{shape.batch, spec.heads, shape.keys};
     },
     .setting =
         [](const AttentionSpec& spec) {
           return fmt::format("routing.choice {}", enum_name(spec.routing.choice));
         },
     .token_axis = 2},
};

void check_routes(const AttentionCall& call) {
  const int64_t clusters = call.spec.routing.clusters;
  if (clusters == 0) return;
  for (const at::Tensor* given : {&call.tensors.query_routes_bht, &call.tensors.key_routes_bhs}) {
    const at::Tensor routes = readable_rows(*given);
    if (!routes.defined()) continue;
    const int64_t* const at = routes.const_data_ptr<int64_t>();
    for (int64_t n = 0; n < routes.numel(); ++n) {
      require<ShapeError>(at[n] >= 0 && at[n] < clusters, "routing",
                          "routes are clusters 0 to {}; got {}", clusters - 1, at[n]);
    }
  }
}

void add_streams_routing(const AttentionSpec& spec, const StreamSpec& keys,
                         std::vector<StreamSpec>& all) {
  if (spec.routing.active())
    all.push_back({.name = "routes",
                   .row_shape = {spec.heads},
                   .dtype = at::kLong,
                   .new_rows = new_rows_of<&AttentionTensors::key_routes_bhs, TokenAxis::third>,
                   .set_rows = set_rows_of<&AttentionTensors::key_routes_bhs, TokenAxis::third>});
  if (spec.routing.reads_nearness())
    all.push_back({.name = "nearness",
                   .row_shape = {spec.heads},
                   .dtype = keys.dtype == at::kDouble ? at::kDouble : at::kFloat,
                   .new_rows = new_rows_of<&AttentionTensors::key_nearness_bhs, TokenAxis::third>,
                   .set_rows = set_rows_of<&AttentionTensors::key_nearness_bhs, TokenAxis::third>});
}

constexpr MechanismSetting kRoutingSettings[] = {
    {"routing", [](AttentionSpec& s) { s.routing.clusters = 16; }},
};

}  // namespace

const Mechanism& routing_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "routing",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.nested({"routing", "stage 6: keys of the query's own cluster (spec 4.3)"},
                     spec.routing);
          },
      .check = [](const AttentionSpec& spec) { spec.routing.check(); },
      .uses = routing_uses,
      .visible = routing_visible,
      .tensors = kRoutingTensors,
      .check_call = check_routes,
      .add_streams = add_streams_routing,
      .settings = kRoutingSettings,
      .remove = [](AttentionSpec& spec) { spec.routing = {}; },
      .key_rule = [](const AttentionSpec& spec) -> std::optional<KeyRule> {
        return spec.routing.active() ? std::optional(KeyRule::lists) : std::nullopt;
      },
      .plain_heads = true,
  };
  return mechanism;
}

}  // namespace fovea
