// Decoding hard Focus: one query reads the keys that a scan of memberships finds.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>

#include "fovea/attention/paths/fused_call.h"
#include "fovea/attention/paths/grouped.h"
#include "fovea/attention/places.h"
#include "fovea/kernels/cpu/grouped.h"

namespace fovea {
namespace {

// Positions of the keys of row b, which must ascend and end with the query's; empty where keys
// stand at 0, 1, ...
struct KeyPositions {
  bool usable = true;
  std::vector<int64_t> of_keys;
};

KeyPositions key_positions(const AttentionContext& context, int64_t keys, int64_t b) {
  if (!context.query_positions_bt.defined() && !context.key_positions_bs.defined()) return {};
  const Places places = resolve_places(context, 1, keys, at::kCPU);
  const auto pick = [b](const at::Tensor& x) {
    return x.select(0, x.size(0) == 1 ? 0 : b).contiguous();
  };
  const at::Tensor p = pick(places.key_positions_bs);
  const int64_t* at = p.const_data_ptr<int64_t>();
  const int64_t query = pick(places.query_positions_bt).item<int64_t>();
  const bool ascends = std::is_sorted(at, at + keys, std::less_equal<>());
  return {keys > 0 && ascends && at[keys - 1] == query, std::vector<int64_t>(at, at + keys)};
}

// The keys that the query of every row sees; empty where decoding is not possible.
std::vector<std::vector<int32_t>> keys_of_rows(const AttentionSpec& spec, const at::Tensor& members,
                                               const AttentionContext& context) {
  const int64_t batch = members.size(0), keys = members.size(1);
  const GroupedRule rule = grouped_rule(spec);
  at::Tensor lengths;
  if (context.key_lengths_b.defined()) lengths = checked_lengths(context, batch, keys);
  const auto* bits = reinterpret_cast<const uint64_t*>(members.const_data_ptr<int64_t>());
  std::vector<std::vector<int32_t>> seen;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t count = lengths.defined() ? lengths.const_data_ptr<int64_t>()[b] : keys;
    const KeyPositions at = lengths.defined() ? KeyPositions{} : key_positions(context, keys, b);
    if (!at.usable) return {};
    seen.push_back(kernels::keys_seen_by_last(
        rule, std::span(bits + b * keys, static_cast<size_t>(count)), at.of_keys));
  }
  return seen;
}

}  // namespace

std::optional<AttentionResult> grouped_decode(const AttentionSpec& spec, const at::Tensor& q,
                                              const at::Tensor& k, const at::Tensor& v,
                                              const AttentionTensors& tensors,
                                              const AttentionContext& context) {
  if (q.size(2) != 1 || k.size(2) == 0 || !is_decoding(spec, q, k, v, tensors, context))
    return std::nullopt;
  const std::vector<std::vector<int32_t>> seen =
      keys_of_rows(spec, tensors.members_bs.cpu().contiguous(), context);
  if (seen.empty()) return std::nullopt;
  AttentionResult result = run_decoding(spec, q, k, v, tensors, context, seen);
  result.path.name = "grouped";
  result.path.plan = "scan";
  result.path.reason = fmt::format("one query: {} of {} keys are read", seen[0].size(), k.size(2));
  return result;
}

}  // namespace fovea
