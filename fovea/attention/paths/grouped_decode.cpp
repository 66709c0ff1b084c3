// Decoding hard Focus: one query reads the keys that a scan of memberships finds.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>

#include "fovea/attention/backend.h"
#include "fovea/attention/paths/grouped.h"
#include "fovea/attention/places.h"

namespace fovea {
namespace {

// Positions of the keys of row b, which must ascend and end with the query's; empty where keys
// stand at 0, 1, ...
struct KeyPositions {
  bool usable = true;
  std::vector<int64_t> of_keys;
};

KeyPositions key_positions(const AttentionCall& call, int64_t b) {
  const AttentionContext& context = call.context;
  if (!context.query_positions_bt.defined() && !context.key_positions_bs.defined()) return {};
  const Places& places = call.places();
  const auto pick = [b](const at::Tensor& x) {
    return x.select(0, x.size(0) == 1 ? 0 : b).contiguous();
  };
  const at::Tensor p = pick(places.key_positions_bs);
  const int64_t keys = p.numel();
  const int64_t* at = p.const_data_ptr<int64_t>();
  const int64_t query = pick(places.query_positions_bt).item<int64_t>();
  const bool ascends = std::is_sorted(at, at + keys, std::less_equal<>());
  return {keys > 0 && ascends && at[keys - 1] == query, std::vector<int64_t>(at, at + keys)};
}

// The keys that the query of every row sees; empty where decoding is not possible.
IntRowList keys_seen(const AttentionCall& call) {
  const at::Tensor members = call.tensors.members_bs.cpu().contiguous();
  const AttentionContext& context = call.context;
  const int64_t batch = members.size(0), keys = members.size(1);
  const GroupedRule rule = grouped_rule(call.spec);
  at::Tensor lengths;
  if (context.key_lengths_b.defined()) lengths = checked_lengths(context, batch, keys);
  const auto* bits = reinterpret_cast<const uint64_t*>(members.const_data_ptr<int64_t>());
  IntRowList seen;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t count = lengths.defined() ? lengths.const_data_ptr<int64_t>()[b] : keys;
    const KeyPositions at = lengths.defined() ? KeyPositions{} : key_positions(call, b);
    if (!at.usable) return {};
    backend_for(members).run(
        kernels::KeysOfLast{.rule = rule,
                            .members = std::span(bits + b * keys, static_cast<size_t>(count)),
                            .positions = at.of_keys,
                            .seen = &seen.values});
    seen.end_row();
  }
  return seen;
}

std::optional<std::string> why_not_grouped_decode(const AttentionCall& call) {
  if (call.q.size(2) != 1 || call.k.size(2) == 0) return "decoding by groups is for one query";
  if (auto why = why_not_by_plans(call)) return why;
  if (auto why = why_not_decoding(call)) return why;
  if (call.made.get([&] { return keys_seen(call); })->view().rows() == 0)
    return "the positions of the keys do not ascend to the query's";
  return std::nullopt;
}

AttentionResult run_grouped_decode(const AttentionCall& call) {
  const auto seen = call.made.get([&] { return keys_seen(call); });
  AttentionResult result = run_decoding(call, seen->view());
  result.path.plan = PlanWord::scan;
  result.path.reason = {
      .kind = PathReason::Kind::one_query,
      .detail = fmt::format("{} of {} keys are read", seen->view().of(0).size(), call.k.size(2))};
  return result;
}

}  // namespace

AttentionPath grouped_decode_path() {
  return {
      .name = PathName::grouped,
      .runs_on = [](const kernels::Backend& b) { return !b.isa<kernels::KeysOfLast>().empty(); },
      .key_rule = KeyRule::groups,
      .why_not = why_not_grouped_decode,
      .run = run_grouped_decode};
}

}  // namespace fovea
