// From clusters and block pairs to lists, and through the grouped kernels.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/paths/listed.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <unordered_map>

#include "fovea/attention/paths/fused_call.h"
#include "fovea/attention/paths/grouped.h"
#include "fovea/base/error.h"
#include "fovea/kernels/common/listed_plan.h"

namespace fovea {
namespace {

std::string beyond_listed(const AttentionSpec& spec, const at::Tensor& q,
                          const AttentionContext& context) {
  if (spec.routing.reads_nearness()) return "grouped kernels have routing.choice recent alone";
  if (spec.bias.kind != BiasSpec::Kind::none) return "grouped kernels have no position bias";
  if (spec.dropout > 0.0 && context.training) return "grouped kernels have no dropout";
  AttentionSpec plain = spec;
  plain.routing = {};
  plain.blocks = {};
  return beyond_fused(plain, q);
}

// The call of one query head alone.
struct HeadCall {
  AttentionSpec spec;
  at::Tensor q, k, v;
  AttentionTensors tensors;
};

std::vector<HeadCall> head_calls(const AttentionSpec& spec, const at::Tensor& q,
                                 const at::Tensor& k, const at::Tensor& v,
                                 const AttentionTensors& tensors) {
  AttentionSpec one = spec;
  one.heads = one.kv_heads = 1;
  one.routing = {};
  one.blocks = {};
  const std::vector<at::Tensor> queries = q.split(1, 1), keys = k.split(1, 1),
                                values = v.split(1, 1);
  std::vector<HeadCall> calls;
  for (int64_t h = 0; h < spec.heads; ++h) {
    const auto g = static_cast<size_t>(h / (spec.heads / spec.kv_heads));
    AttentionTensors own{.tau_bt = tensors.tau_bt};
    if (tensors.sink_logit_h.defined()) own.sink_logit_h = tensors.sink_logit_h.narrow(0, h, 1);
    calls.push_back({one, queries[static_cast<size_t>(h)], keys[g], values[g], std::move(own)});
  }
  return calls;
}

AttentionResult joined(const std::vector<AttentionResult>& heads) {
  const auto join = [&](const auto& part, int64_t dim) {
    std::vector<at::Tensor> parts;
    parts.reserve(heads.size());
    for (const AttentionResult& head : heads) parts.push_back(part(head));
    return parts[0].defined() ? at::cat(parts, dim) : at::Tensor();
  };
  AttentionResult all = heads.front();
  all.out_bhte = join([](const AttentionResult& r) { return r.out_bhte; }, 1);
  all.lse_bht = join([](const AttentionResult& r) { return r.lse_bht; }, 1);
  all.stats = {join([](const AttentionResult& r) { return r.stats.entropy_h; }, 0),
               join([](const AttentionResult& r) { return r.stats.largest_weight_h; }, 0),
               join([](const AttentionResult& r) { return r.stats.sink_mass_h; }, 0)};
  return all;
}

std::vector<int32_t> routes_of(const at::Tensor& routes_bht, int64_t b, int64_t h,
                               int64_t clusters) {
  const at::Tensor row = routes_bht.select(0, b).select(0, h).cpu().contiguous();
  const int64_t* const at = row.const_data_ptr<int64_t>();
  std::vector<int32_t> out;
  for (int64_t n = 0; n < row.numel(); ++n) {
    require<ShapeError>(at[n] >= 0 && at[n] < clusters, "routing",
                        "routes are clusters 0 to {}; got {}", clusters - 1, at[n]);
    out.push_back(static_cast<int32_t>(at[n]));
  }
  return out;
}

// Plans of one head for every row of the batch.
GroupedPlans routing_plans(const AttentionSpec& spec, const AttentionTensors& tensors,
                           const SelfPlaces& places, int64_t h) {
  const int64_t batch = tensors.key_routes_bhs.size(0), clusters = spec.routing.clusters;
  IntRows own;  // a cluster visits itself
  for (int32_t c = 0; c < clusters; ++c) {
    own.values.push_back(c);
    own.begin.push_back(c + 1);
  }
  GroupedPlans out;
  for (int64_t b = 0; b < batch; ++b) {
    const std::vector<int32_t> queries = routes_of(tensors.query_routes_bht, b, h, clusters),
                               keys = routes_of(tensors.key_routes_bhs, b, h, clusters);
    out.plans.push_back(make_listed_plan({.places = places.of(b),
                                          .query_list = queries,
                                          .key_list = keys,
                                          .visits = &own,
                                          .keep = spec.routing.keep}));
  }
  return out;
}

// Key blocks that every query block sees, ascending, without later ones.
std::vector<std::vector<int64_t>> seen_blocks(const BlockPairsSpec& spec) {
  std::vector<std::vector<int64_t>> seen;
  for (size_t n = 0; n + 1 < spec.pairs.size(); n += 2) {
    const int64_t query = spec.pairs[n], key = spec.pairs[n + 1];
    if (key > query) continue;
    if (query >= std::ssize(seen)) seen.resize(static_cast<size_t>(query + 1));
    seen[static_cast<size_t>(query)].push_back(key);
  }
  for (std::vector<int64_t>& keys : seen) {
    std::ranges::sort(keys);
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  }
  return seen;
}

// A list a block of a document.
GroupedPlan block_plan(const BlockPairsSpec& spec, std::span<const TokenPlace> places,
                       int64_t queries) {
  const std::vector<std::vector<int64_t>> seen = seen_blocks(spec);
  std::vector<int32_t> list_of;
  IntRows visits;
  std::unordered_map<int64_t, int32_t> lists;  // of the document's blocks so far
  int64_t block = -1;
  for (size_t n = 0; n < places.size(); ++n) {
    const bool starts = n == 0 || places[n].document != places[n - 1].document;
    if (starts) lists.clear();
    if (starts || places[n].position / spec.size != block) {
      block = places[n].position / spec.size;
      const auto number = static_cast<int32_t>(visits.begin.size()) - 1;
      lists[block] = number;
      if (block >= 0 && block < std::ssize(seen)) {
        for (const int64_t key : seen[static_cast<size_t>(block)]) {
          if (const auto found = lists.find(key); found != lists.end())
            visits.values.push_back(found->second);
        }
      }
      visits.begin.push_back(static_cast<int32_t>(visits.values.size()));
    }
    list_of.push_back(static_cast<int32_t>(visits.begin.size()) - 2);
  }
  return make_listed_plan({.places = places,
                           .query_list = std::span(list_of).last(static_cast<size_t>(queries)),
                           .key_list = list_of,
                           .visits = &visits});
}

// Keys that the last of `places` sees by its block.
std::vector<int32_t> keys_in_blocks(const BlockPairsSpec& spec,
                                    std::span<const TokenPlace> places) {
  const std::vector<std::vector<int64_t>> seen = seen_blocks(spec);
  const int64_t own = places.back().position / spec.size;
  std::vector<int32_t> keys;
  if (own < 0 || own >= std::ssize(seen)) return keys;
  for (size_t n = 0; n < places.size(); ++n) {
    if (places[n].document == places.back().document &&
        std::ranges::binary_search(seen[static_cast<size_t>(own)], places[n].position / spec.size))
      keys.push_back(static_cast<int32_t>(n));
  }
  return keys;
}

// The last keys of the query's cluster.
std::vector<int32_t> keys_in_cluster(const AttentionTensors& tensors, const RoutingSpec& spec,
                                     int64_t b, int64_t h) {
  const std::vector<int32_t> keys = routes_of(tensors.key_routes_bhs, b, h, spec.clusters);
  const int32_t own = routes_of(tensors.query_routes_bht, b, h, spec.clusters)[0];
  std::vector<int32_t> seen;
  for (size_t n = keys.size(); n-- > 0 && std::ssize(seen) < spec.keep;) {
    if (keys[n] == own) seen.push_back(static_cast<int32_t>(n));
  }
  std::ranges::reverse(seen);
  return seen;
}

AttentionResult decode(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                       const at::Tensor& v, const AttentionTensors& tensors,
                       const AttentionContext& context, const SelfPlaces& places) {
  std::vector<std::vector<int32_t>> seen(static_cast<size_t>(q.size(0)));
  if (spec.blocks.active()) {
    for (size_t b = 0; b < seen.size(); ++b)
      seen[b] = keys_in_blocks(spec.blocks, places.of(static_cast<int64_t>(b)));
    AttentionSpec plain = spec;
    plain.blocks = {};
    return run_decoding(plain, q, k, v, tensors, context, seen);
  }
  std::vector<AttentionResult> heads;
  for (const HeadCall& call : head_calls(spec, q, k, v, tensors)) {
    for (size_t b = 0; b < seen.size(); ++b)
      seen[b] = keys_in_cluster(tensors, spec.routing, static_cast<int64_t>(b), std::ssize(heads));
    heads.push_back(run_decoding(call.spec, call.q, call.k, call.v, call.tensors, context, seen));
  }
  return joined(heads);
}

AttentionResult by_plans(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                         const at::Tensor& v, const AttentionTensors& tensors,
                         const AttentionContext& context, const SelfPlaces& places) {
  if (spec.blocks.active()) {
    GroupedPlans plans;
    for (const auto& row : places.rows)
      plans.plans.push_back(block_plan(spec.blocks, row, q.size(2)));
    AttentionSpec plain = spec;
    plain.blocks = {};
    return grouped_attention(plain, std::move(plans), q, k, v, tensors, context);
  }
  std::vector<AttentionResult> heads;
  for (const HeadCall& call : head_calls(spec, q, k, v, tensors)) {
    heads.push_back(grouped_attention(call.spec,
                                      routing_plans(spec, tensors, places, std::ssize(heads)),
                                      call.q, call.k, call.v, call.tensors, context));
  }
  AttentionResult result = joined(heads);
  result.path.tiles = result.path.causal_tiles = 0.0;
  for (const AttentionResult& head : heads) {
    result.path.tiles += head.path.tiles / static_cast<double>(heads.size());
    result.path.causal_tiles += head.path.causal_tiles / static_cast<double>(heads.size());
  }
  return result;
}

}  // namespace

std::optional<AttentionResult> listed_attention(const AttentionSpec& spec, const at::Tensor& q,
                                                const at::Tensor& k, const at::Tensor& v,
                                                const AttentionTensors& tensors,
                                                const AttentionContext& context,
                                                std::string& why_not) {
  why_not = beyond_listed(spec, q, context);
  if (!why_not.empty()) return std::nullopt;
  if (q.size(0) == 0 || q.size(2) == 0) {
    why_not = "nothing to compute";
    return std::nullopt;
  }
  const SelfPlaces places = self_places(context, q.size(2), k.size(2), q.size(0));
  why_not = places.reason;
  if (!why_not.empty()) return std::nullopt;
  const bool one = q.size(2) == 1 && k.size(2) > 0 && !context.key_lengths_b.defined() &&
                   is_decoding(spec, q, k, v, tensors, context);
  AttentionResult result = one ? decode(spec, q, k, v, tensors, context, places)
                               : by_plans(spec, q, k, v, tensors, context, places);
  result.path.name = "grouped";
  result.path.plan = one ? "scan" : "lists";
  result.path.reason =
      spec.routing.active() ? "every head has a plan of its clusters" : "given pairs of blocks";
  return result;
}

}  // namespace fovea
