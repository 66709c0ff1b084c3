// From tensors to the grouped kernels and back.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/paths/grouped.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "fovea/attention/paths/fused_call.h"
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

std::string GroupedPlans::name() const {
  std::set<std::string_view> names;
  for (const GroupedPlan& plan : plans)
    names.insert(enum_names(plan.kind)[static_cast<size_t>(plan.kind)]);
  return fmt::format("{}", fmt::join(names, "+"));
}

SelfPlaces self_places(const AttentionContext& context, int64_t queries, int64_t keys,
                       int64_t batch) {
  if (queries > keys) return {.rows = {}, .reason = "some queries are not among the keys"};
  const bool plain = !context.query_positions_bt.defined() && !context.key_positions_bs.defined() &&
                     !context.query_documents_bt.defined() && !context.key_documents_bs.defined() &&
                     !context.key_lengths_b.defined();
  SelfPlaces out;
  if (plain) {
    out.rows.resize(1);
    for (int64_t n = 0; n < keys; ++n) out.rows[0].push_back({.document = 0, .position = n});
    return out;
  }
  const Places places = resolve_places(context, queries, keys, at::kCPU);
  for (int64_t b = 0; b < batch; ++b) {
    out.rows.push_back(token_places(places.key_positions_bs, places.key_documents_bs, b));
    if (!queries_are_last_keys(
            token_places(places.query_positions_bt, places.query_documents_bt, b), out.rows.back()))
      return {.rows = {}, .reason = "the queries are not the last of the keys"};
    if (std::string why = beyond_grouped_plans({.window = 1}, out.rows.back()); !why.empty())
      return {.rows = {}, .reason = std::move(why)};
  }
  return out;
}

GroupedPlans make_grouped_plans(const AttentionSpec& spec, const at::Tensor& members_bs,
                                int64_t queries, const AttentionContext& context,
                                std::optional<GroupedKind> wanted) {
  const int64_t batch = members_bs.size(0), keys = members_bs.size(1);
  const SelfPlaces places = self_places(context, queries, keys, batch);
  GroupedPlans out{.plans = {}, .reason = places.reason};
  if (!out.reason.empty()) return out;
  const at::Tensor members = members_bs.cpu().contiguous();
  const auto* bits = reinterpret_cast<const uint64_t*>(members.const_data_ptr<int64_t>());
  for (int64_t b = 0; b < batch; ++b) {
    out.plans.push_back(make_grouped_plan(
        grouped_rule(spec),
        {places.of(b), std::span(bits + b * keys, static_cast<size_t>(keys)), queries}, wanted));
  }
  return out;
}

void count_tiles(std::span<const GroupedPlan> plans, PathTaken& path) {
  for (const GroupedPlan& plan : plans) {
    path.tiles += static_cast<double>(visited_tiles(plan)) / static_cast<double>(plans.size());
    const int64_t blocks = (plan.queries + kQueryBlock - 1) / kQueryBlock;
    int64_t all = 0;
    for (int64_t n = 0; n < blocks; ++n) {
      const int64_t last = std::min(plan.first_query() + (n + 1) * kQueryBlock, plan.keys);
      all += (last + kVisitTile - 1) / kVisitTile;
    }
    path.causal_tiles += static_cast<double>(all) / static_cast<double>(plans.size());
  }
}

std::string beyond_grouped(const AttentionSpec& spec, const at::Tensor& q,
                           const AttentionContext& context) {
  if (spec.focus.gate != FocusSpec::Gate::hard) return "grouped kernels are for gate hard";
  if (spec.bias.kind != BiasSpec::Kind::none) return "grouped kernels have no position bias";
  if (spec.dropout > 0.0 && context.training) return "grouped kernels have no dropout";
  AttentionSpec plain = spec;
  plain.focus = {};
  return beyond_fused(plain, q);
}

AttentionResult grouped_attention(const AttentionSpec& spec, GroupedPlans plans,
                                  const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionTensors& tensors,
                                  const AttentionContext& context) {
  auto call = fused_call(spec, nullptr, context);
  PathTaken path{.name = "grouped",
                 .isa = kernel_isa(q.scalar_type()),
                 .plan = plans.name(),
                 .reason = plans.plans.empty() ? "" : plans.plans.front().reason};
  if (context.want_tiles || context.want_stats) count_tiles(plans.plans, path);
  call->grouped = std::move(plans.plans);
  AttentionResult result =
      run_kernels(fused_operands(spec, q, k, v, tensors), q.scalar_type(), std::move(call));
  result.path = std::move(path);
  return result;
}

}  // namespace fovea
