// Decoding hard Focus: one query reads the keys that a scan of memberships finds.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>

#include "fovea/attention/fused_call.h"
#include "fovea/attention/grouped.h"
#include "fovea/attention/places.h"
#include "fovea/kernels/cpu/grouped.h"

namespace fovea {
namespace {

bool wants_gradient(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const AttentionTensors& tensors) {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor* x : {&q, &k, &v, &tensors.tau_bt, &tensors.sink_logit_h}) {
    if (x->defined() && x->requires_grad()) return true;
  }
  return false;
}

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
  const GroupedRule rule{.mask = spec.mask,
                         .groups = spec.focus.groups,
                         .window = spec.focus.window,
                         .sinks = spec.focus.sinks};
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

template <class T>
void run_decode(const FusedCall& call, const FusedOperands& x,
                const std::vector<std::vector<int32_t>>& seen, const at::Tensor& out,
                const at::Tensor& lse) {
  std::vector<RowVisits> rows;
  kernels::AttentionSizes sizes = sizes_of(x);
  sizes.keys = 0;
  for (const std::vector<int32_t>& keys : seen) {
    rows.push_back({.near = {.begin = 0, .end = std::ssize(keys)}, .far = {}});
    sizes.keys = std::max(sizes.keys, std::ssize(keys));
  }
  kernels::run(kernels::AttentionDecode<T>{.sizes = sizes,
                                           .rule = rule_of(call, x),
                                           .rows = rows,
                                           .keys_seen = seen,
                                           .q = rows_of<T>(x.q),
                                           .k = rows_of<T>(x.k),
                                           .v = rows_of<T>(x.v),
                                           .out = writable_rows_of<T>(out),
                                           .lse = lse.mutable_data_ptr<float>()});
}

}  // namespace

std::optional<AttentionResult> grouped_decode(const AttentionSpec& spec, const at::Tensor& q,
                                              const at::Tensor& k, const at::Tensor& v,
                                              const AttentionTensors& tensors,
                                              const AttentionContext& context) {
  const bool documents = context.query_documents_bt.defined() || context.key_documents_bs.defined();
  if (q.numel() == 0 || q.size(2) != 1 || k.size(2) == 0 || documents || context.want_stats ||
      wants_gradient(q, k, v, tensors) ||
      !kernels::prefers_decode({.heads = spec.heads, .kv_heads = spec.kv_heads, .queries = 1}))
    return std::nullopt;
  const at::NoGradGuard no_gradient;
  const std::vector<std::vector<int32_t>> seen =
      keys_of_rows(spec, tensors.members_bs.cpu().contiguous(), context);
  if (seen.empty()) return std::nullopt;
  FusedOperands x = fused_operands(spec, q, k, v, tensors);
  for (at::Tensor* t : {&x.q, &x.k, &x.v}) *t = contiguous_rows(*t);
  const at::Tensor out = empty_by_token({q.size(0), q.size(1), 1, v.size(3)}, x.q.options());
  AttentionResult result;
  result.lse_bht = at::empty({q.size(0), q.size(1), 1}, q.options().dtype(at::kFloat));
  const auto call = fused_call(spec, nullptr, context);
  if (x.q.scalar_type() == at::kBFloat16) {
    run_decode<BFloat16>(*call, x, seen, out, result.lse_bht);
  } else {
    run_decode<float>(*call, x, seen, out, result.lse_bht);
  }
  result.out_bhte = out.to(q.scalar_type());
  result.path = {
      .name = "grouped",
      .isa = kernel_isa(q.scalar_type()),
      .plan = "scan",
      .reason = fmt::format("one query: {} of {} keys are read", seen[0].size(), k.size(2))};
  return result;
}

}  // namespace fovea
