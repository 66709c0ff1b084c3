// The grouped path: hard Focus by plans.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/paths/grouped.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "fovea/attention/backend.h"
#include "fovea/attention/places.h"

namespace fovea {
namespace {

bool queries_are_last_keys(const std::vector<TokenPlace>& queries,
                           const std::vector<TokenPlace>& keys) {
  if (queries.size() > keys.size()) return false;
  const size_t first = keys.size() - queries.size();
  for (size_t n = 0; n < queries.size(); ++n) {
    if (queries[n].position != keys[first + n].position ||
        queries[n].document != keys[first + n].document)
      return false;
  }
  return true;
}

}  // namespace

PlanName GroupedPlans::name() const {
  PlanName name;
  for (const GroupedPlan& plan : *plans) {
    switch (plan.kind) {
      case GroupedKind::dense:
        name.add(PlanWord::dense);
        break;
      case GroupedKind::block_sparse:
        name.add(PlanWord::block_sparse);
        break;
      case GroupedKind::classes:
        name.add(PlanWord::classes);
        break;
      case GroupedKind::groups:
        name.add(PlanWord::groups);
        break;
      case GroupedKind::lists:
        name.add(PlanWord::lists);
        break;
    }
  }
  return name;
}

bool has_default_places(const AttentionContext& context) {
  return !context.query_positions_bt.defined() && !context.key_positions_bs.defined() &&
         !context.query_documents_bt.defined() && !context.key_documents_bs.defined() &&
         !context.key_lengths_b.defined();
}

SelfPlaces self_places(const AttentionCall& call) {
  const auto& [batch, queries, keys, dtype, device] = call.shape();
  const AttentionContext& context = call.context;
  if (queries > keys) return {.rows = {}, .why_not = "some queries are not among the keys"};
  SelfPlaces out;
  if (has_default_places(context)) {
    out.rows.resize(1);
    for (int64_t n = 0; n < keys; ++n) out.rows[0].push_back({.document = 0, .position = n});
    return out;
  }
  const Places& places = call.places();
  for (int64_t b = 0; b < batch; ++b) {
    out.rows.push_back(token_places(places.key_positions_bs, places.key_documents_bs, b));
    if (!queries_are_last_keys(
            token_places(places.query_positions_bt, places.query_documents_bt, b), out.rows.back()))
      return {.rows = {}, .why_not = "the queries are not the last of the keys"};
    if (auto why = why_not_grouped_plans({.window = 1}, out.rows.back()))
      return {.rows = {}, .why_not = std::move(why)};
  }
  return out;
}

GroupedPlans make_grouped_plans(const AttentionCall& call, std::optional<GroupedKind> wanted) {
  const SelfPlaces places = self_places(call);
  if (places.why_not) return {.plans = nullptr, .why_not = places.why_not};
  const at::Tensor members = call.tensors.members_bs.cpu().contiguous();
  const int64_t keys = members.size(1);
  const auto* bits = reinterpret_cast<const uint64_t*>(members.const_data_ptr<int64_t>());
  auto plans = std::make_shared<GroupedPlanList>();
  for (int64_t b = 0; b < members.size(0); ++b) {
    plans->push_back(make_grouped_plan(
        grouped_rule(call.spec),
        {places.of(b), std::span(bits + b * keys, static_cast<size_t>(keys)), call.q.size(2)},
        backend_for(call.q).tile_sizes(), wanted));
  }
  return {.plans = std::move(plans), .why_not = std::nullopt};
}

void count_tiles(std::span<const GroupedPlan> plans, PathTaken& path) {
  for (const GroupedPlan& plan : plans) {
    path.tiles += static_cast<double>(visited_tiles(plan)) / static_cast<double>(plans.size());
    const TileSizes& sizes = plan.sizes;
    const int64_t blocks = (plan.queries + sizes.queries - 1) / sizes.queries;
    int64_t all = 0;
    for (int64_t n = 0; n < blocks; ++n) {
      const int64_t last = std::min(plan.first_query() + (n + 1) * sizes.queries, plan.keys);
      all += (last + sizes.tile - 1) / sizes.tile;
    }
    path.causal_tiles += static_cast<double>(all) / static_cast<double>(plans.size());
  }
}

std::optional<std::string> why_not_by_plans(const AttentionCall& call) {
  if (call.spec.bias.kind != BiasSpec::Kind::none) return "grouped kernels have no position bias";
  if (call.drops_weights()) return "grouped kernels have no dropout";
  return why_not_kernels(call);
}

AttentionResult grouped_attention(const AttentionCall& call, const GroupedPlans& plans) {
  AttentionResult result = run_kernels(call, plans.plans);
  const GroupedPlanList& list = *plans.plans;
  result.path.plan = plans.name();
  result.path.reason = {.kind = PathReason::Kind::cheapest_plan,
                        .detail = list.empty() ? "" : list.front().reason};
  if (call.context.want_tiles || call.context.want_stats) count_tiles(list, result.path);
  return result;
}

AttentionPath grouped_path() {
  return {.name = PathName::grouped,
          .runs_on = has_kernels<kernels::GroupedForward>,
          .key_rule = KeyRule::groups,
          .why_not = [](const AttentionCall& call) -> std::optional<std::string> {
            if (auto why = why_not_by_plans(call)) return why;
            return call.made.get([&] { return make_grouped_plans(call); })->why_not;
          },
          .run =
              [](const AttentionCall& call) {
                return grouped_attention(call,
                                         *call.made.get([&] { return make_grouped_plans(call); }));
              }};
}

}  // namespace fovea
