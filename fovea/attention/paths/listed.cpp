// The path of lists: routing (a plan for every head) and given block pairs (one for all) by the
// grouped kernels, one query by the decoding kernels (spec 4.3).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>

#include "fovea/attention/backend.h"
#include "fovea/attention/paths/grouped.h"
#include "fovea/kernels/common/block_plan.h"
#include "fovea/kernels/common/listed_plan.h"

namespace fovea {
namespace {

// The calls of the query heads one by one.
std::vector<AttentionCall> head_calls(const AttentionCall& call) {
  AttentionSpec one = call.spec;
  one.heads = one.kv_heads = 1;
  const std::vector<at::Tensor> queries = call.q.split(1, 1), keys = call.k.split(1, 1),
                                values = call.v.split(1, 1);
  std::vector<AttentionCall> calls;
  for (int64_t h = 0; h < call.spec.heads; ++h) {
    const auto g = static_cast<size_t>(h / (call.spec.heads / call.spec.kv_heads));
    AttentionTensors of_head{.tau_bt = call.tensors.tau_bt};
    if (call.tensors.sink_logit_h.defined())
      of_head.sink_logit_h = call.tensors.sink_logit_h.narrow(0, h, 1);
    calls.push_back({.spec = one,
                     .q = queries[static_cast<size_t>(h)],
                     .k = keys[g],
                     .v = values[g],
                     .tensors = std::move(of_head),
                     .context = call.context});
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

std::vector<int32_t> routes_of(const at::Tensor& routes_bht, int64_t b, int64_t h) {
  const at::Tensor row = routes_bht.select(0, b).select(0, h).to(at::kCPU, at::kInt).contiguous();
  const int32_t* const at = row.const_data_ptr<int32_t>();
  return {at, at + row.numel()};
}

// Plans of one head for every row of the batch.
GroupedPlans routing_plans(const AttentionCall& call, const SelfPlaces& places, int64_t h) {
  IntRowList itself;  // a cluster visits itself
  for (int32_t c = 0; c < call.spec.routing.clusters; ++c) {
    itself.add_row({&c, 1});
  }
  auto plans = std::make_shared<GroupedPlanList>();
  for (int64_t b = 0; b < call.q.size(0); ++b) {
    const std::vector<int32_t> queries = routes_of(call.tensors.query_routes_bht, b, h),
                               keys = routes_of(call.tensors.key_routes_bhs, b, h);
    plans->push_back(make_listed_plan({.places = places.of(b),
                                       .query_list = queries,
                                       .key_list = keys,
                                       .visits = itself.view(),
                                       .keep = call.spec.routing.keep},
                                      backend_for(call.q).tile_sizes()));
  }
  return {.plans = std::move(plans), .why_not = std::nullopt};
}

BlockRule block_rule(const BlockPairsSpec& spec) {
  return {.size = spec.size, .pairs = spec.pairs};
}

// Keys that the last of `places` sees by its block.
std::vector<int32_t> keys_in_blocks(const BlockPairsSpec& spec,
                                    std::span<const TokenPlace> places) {
  const std::vector<std::vector<int64_t>> seen = seen_blocks(block_rule(spec));
  const int64_t block = places.back().position / spec.size;
  std::vector<int32_t> keys;
  if (block < 0 || block >= std::ssize(seen)) return keys;
  for (size_t n = 0; n < places.size(); ++n) {
    if (places[n].document == places.back().document &&
        std::ranges::binary_search(seen[static_cast<size_t>(block)],
                                   places[n].position / spec.size))
      keys.push_back(static_cast<int32_t>(n));
  }
  return keys;
}

// Of queries that see the last keys of their cluster.
KeysRead keys_of_clusters(const AttentionCall& call, const SelfPlaces& places) {
  const int64_t b = call.q.size(0), h = call.spec.heads, t = call.q.size(2), s = call.k.size(2);
  int64_t all = 0, last = 0;
  std::vector<int64_t> sizes(static_cast<size_t>(call.spec.routing.clusters));
  for (int64_t row = 0; row < b; ++row) {
    const auto at = places.of(row);
    for (int64_t head = 0; head < h; ++head) {
      const std::vector<int32_t> queries = routes_of(call.tensors.query_routes_bht, row, head),
                                 keys = routes_of(call.tensors.key_routes_bhs, row, head);
      for (int64_t n = 0; n < s; ++n) {
        if (n == 0 || at[n].document != at[n - 1].document) std::ranges::fill(sizes, 0);
        ++sizes[static_cast<size_t>(keys[n])];
        if (n < s - t) continue;
        const int64_t seen = sizes[static_cast<size_t>(queries[n - (s - t)])];
        all += std::min(seen, call.spec.routing.keep);
        if (n == s - 1) last += std::min(seen, call.spec.routing.keep);
      }
    }
  }
  return {.row = static_cast<double>(all) / static_cast<double>(b * h * t),
          .last_row = static_cast<double>(last) / static_cast<double>(b * h)};
}

// The last keys of the query's cluster.
std::vector<int32_t> keys_in_cluster(const AttentionCall& call, int64_t b, int64_t h) {
  const std::vector<int32_t> keys = routes_of(call.tensors.key_routes_bhs, b, h);
  const int32_t cluster = routes_of(call.tensors.query_routes_bht, b, h)[0];
  std::vector<int32_t> seen;
  for (size_t n = keys.size(); n-- > 0 && std::ssize(seen) < call.spec.routing.keep;) {
    if (keys[n] == cluster) seen.push_back(static_cast<int32_t>(n));
  }
  std::ranges::reverse(seen);
  return seen;
}

AttentionResult decode(const AttentionCall& call, const SelfPlaces& places) {
  IntRowList seen;
  if (call.spec.blocks.active()) {
    for (int64_t b = 0; b < call.q.size(0); ++b)
      seen.add_row(keys_in_blocks(call.spec.blocks, places.of(b)));
    return run_decoding(call, seen.view());
  }
  std::vector<AttentionResult> heads;
  for (const AttentionCall& head : head_calls(call)) {
    seen.clear();
    for (int64_t b = 0; b < call.q.size(0); ++b)
      seen.add_row(keys_in_cluster(call, b, std::ssize(heads)));
    heads.push_back(run_decoding(head, seen.view()));
  }
  return joined(heads);
}

AttentionResult by_plans(const AttentionCall& call, const SelfPlaces& places) {
  if (call.spec.blocks.active()) {
    auto plans = std::make_shared<GroupedPlanList>();
    const TileSizes tiles = backend_for(call.q).tile_sizes();
    for (const auto& row : places.rows)
      plans->push_back(make_block_plan(block_rule(call.spec.blocks), row, call.q.size(2), tiles));
    return grouped_attention(call, {.plans = std::move(plans), .why_not = std::nullopt});
  }
  std::vector<AttentionResult> heads;
  for (const AttentionCall& head : head_calls(call))
    heads.push_back(grouped_attention(head, routing_plans(call, places, std::ssize(heads))));
  AttentionResult result = joined(heads);
  result.path.tiles = result.path.causal_tiles = 0.0;
  for (const AttentionResult& head : heads) {
    result.path.tiles += head.path.tiles / static_cast<double>(heads.size());
    result.path.causal_tiles += head.path.causal_tiles / static_cast<double>(heads.size());
  }
  return result;
}

std::optional<std::string> why_not_listed(const AttentionCall& call) {
  if (call.spec.routing.reads_nearness()) return "grouped kernels have routing.choice recent alone";
  if (auto why = why_not_by_plans(call)) return why;
  if (call.q.size(0) == 0 || call.q.size(2) == 0) return "nothing to compute";
  return call.made.get([&] { return self_places(call); })->why_not;
}

AttentionResult run_listed(const AttentionCall& call) {
  const auto places = call.made.get([&] { return self_places(call); });
  const bool one = call.q.size(2) == 1 && call.k.size(2) > 0 &&
                   !call.context.key_lengths_b.defined() && !why_not_decoding(call);
  AttentionResult result = one ? decode(call, *places) : by_plans(call, *places);
  if (!one && call.spec.routing.active()) result.path.keys_read = keys_of_clusters(call, *places);
  result.path.plan = one ? PlanWord::scan : PlanWord::lists;
  result.path.reason = {.kind = call.spec.routing.active() ? PathReason::Kind::clusters
                                                           : PathReason::Kind::block_pairs};
  return result;
}

}  // namespace

AttentionPath listed_path() {
  return {.name = PathName::grouped,
          .runs_on = has_kernels<kernels::GroupedForward>,
          .key_rule = KeyRule::lists,
          .why_not = why_not_listed,
          .run = run_listed};
}

}  // namespace fovea
