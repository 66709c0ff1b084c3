// The decoding path: few queries, whose keys are read where they lie.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>

#include "fovea/attention/backend.h"
#include "fovea/attention/paths/fused_call.h"
#include "fovea/attention/places.h"
#include "fovea/attention/plan.h"

namespace fovea {
namespace {

// Rows of int64 positions as runs of neighbours.
std::vector<KeyRange> runs_of(const at::Tensor& positions_s) {
  const at::Tensor x = positions_s.cpu().contiguous();
  const int64_t* at = x.const_data_ptr<int64_t>();
  std::vector<KeyRange> runs;
  for (int64_t j = 0; j < x.numel(); ++j) {
    if (runs.empty() || at[j] != j + runs.back().shift)
      runs.push_back({.begin = j, .end = j, .shift = at[j] - j});
    runs.back().end = j + 1;
  }
  return runs;
}

}  // namespace

RowsSeen rows_seen(const AttentionCall& call) {
  const AttentionContext& context = call.context;
  const CallShape shape = call.shape();
  RowsSeen rows;
  const bool placed = context.query_positions_bt.defined() || context.key_positions_bs.defined();
  at::Tensor lengths;
  if (context.key_lengths_b.defined()) lengths = checked_lengths(context, shape.batch, shape.keys);
  const auto pick = [](const at::Tensor& x, int64_t b) {
    return x.select(0, x.size(0) == 1 ? 0 : b);
  };
  for (int64_t b = 0; b < shape.batch; ++b) {
    std::vector<KeyRange> runs{{.begin = 0, .end = shape.keys, .shift = 0}};
    if (lengths.defined()) runs[0].end = lengths.const_data_ptr<int64_t>()[b];
    at::Tensor positions;
    if (placed) {
      runs = runs_of(pick(call.places().key_positions_bs, b));
      positions = pick(call.places().query_positions_bt, b).contiguous();
    }
    for (int64_t i = 0; i < shape.queries; ++i) {
      const int64_t position =
          placed ? positions.const_data_ptr<int64_t>()[i] : runs[0].end - shape.queries + i;
      const std::optional<RowVisits> row = row_visits(call.spec.mask, position, runs);
      if (!row) return {};
      rows.push_back(*row);
    }
  }
  return rows;
}

namespace {

template <class T>
void run_fused_decode(const FusedCall& call, const FusedOperands& x, kernels::AttentionSizes sizes,
                      std::span<const RowVisits> rows, const IntRows& keys_seen,
                      const at::Tensor& out, const at::Tensor& lse) {
  backend_for(x.q).run(kernels::AttentionDecode<T>{.sizes = sizes,
                                                   .rule = rule_of(call, x),
                                                   .rows = rows,
                                                   .keys_seen = keys_seen,
                                                   .q = rows_of<T>(x.q),
                                                   .k = rows_of<T>(x.k),
                                                   .v = rows_of<T>(x.v),
                                                   .out = writable_rows_of<T>(out),
                                                   .lse = lse.mutable_data_ptr<float>()});
}

// `keys`: of the longest list, or all.
AttentionResult run_fused_decode(const AttentionCall& given, int64_t keys,
                                 std::span<const RowVisits> rows, const IntRows& keys_seen) {
  const at::NoGradGuard no_gradient;
  FusedOperands x = fused_operands(given);
  for (at::Tensor* t : {&x.q, &x.k, &x.v}) *t = contiguous_rows(*t);
  const at::Tensor& q = given.q;
  const at::Tensor out =
      empty_by_token({q.size(0), q.size(1), q.size(2), given.v.size(3)}, x.q.options());
  AttentionResult result;
  result.lse_bht = at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
  const auto call = fused_call(given);
  kernels::AttentionSizes sizes = sizes_of(x);
  sizes.keys = keys;
  with_kernel_type(x.q.scalar_type(), "attention", [&]<class T>(T) {
    run_fused_decode<T>(*call, x, sizes, rows, keys_seen, out, result.lse_bht);
  });
  result.out_bhte = out.to(q.scalar_type());
  result.path.isa = kernel_isa(x.q);
  return result;
}

}  // namespace

std::optional<std::string> why_not_in_place(const AttentionCall& call) {
  const AttentionContext& context = call.context;
  if (call.q.numel() == 0) return "nothing to compute";
  if (context.query_documents_bt.defined() || context.key_documents_bs.defined())
    return "decoding is for one document a row";
  if (context.want_stats) return "decoding has no telemetry";
  if (call.drops_weights()) return "decoding has no dropout";
  if (call.wants_gradient()) return "decoding has no gradient";
  return std::nullopt;
}

std::optional<std::string> why_not_decoding(const AttentionCall& call) {
  if (auto why = why_not_in_place(call)) return why;
  const kernels::Backend* const backend = backend_of(call.q.device());
  if (backend == nullptr || !backend->prefers_decode(sizes_of(call.spec, call.q.size(2))))
    return "decoding is for few queries a key head";
  return std::nullopt;
}

AttentionResult run_decoding(const AttentionCall& call, std::span<const RowVisits> rows) {
  return run_fused_decode(call, call.k.size(2), rows, {});
}

AttentionResult run_decoding(const AttentionCall& call, const IntRows& keys_seen) {
  std::vector<RowVisits> rows;
  int64_t longest = 0;
  for (int64_t b = 0; b < keys_seen.rows(); ++b) {
    const int64_t keys = std::ssize(keys_seen.of(b));
    rows.push_back({.near = {.begin = 0, .end = keys}, .far = {}});
    longest = std::max(longest, keys);
  }
  return run_fused_decode(call, longest, rows, keys_seen);
}

AttentionPath fused_decode_path() {
  return {.name = PathName::fused,
          .runs_on = has_kernels<kernels::AttentionDecode>,
          .key_rule = KeyRule::mask,
          .why_not = [](const AttentionCall& call) -> std::optional<std::string> {
            if (auto why = why_not_decoding(call)) return why;
            if (auto why = why_not_pointwise(call)) return why;
            if (call.made.get([&] { return rows_seen(call); })->empty())
              return "a row sees more than two ranges of keys";
            return std::nullopt;
          },
          .run =
              [](const AttentionCall& call) {
                const auto rows = call.made.get([&] { return rows_seen(call); });
                AttentionResult result = run_decoding(call, std::span<const RowVisits>(*rows));
                result.path.plan = plan_name(call.spec, {}, call.k.size(2));
                result.path.reason = {.kind = PathReason::Kind::few_queries};
                return result;
              }};
}

}  // namespace fovea
