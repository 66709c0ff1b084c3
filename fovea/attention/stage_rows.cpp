// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/stage_rows.h"

#include <ATen/ATen.h>

#include <utility>

#include "fovea/attention/isolation.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/pipeline.h"

namespace fovea {
namespace {

at::Tensor batch_rows(const at::Tensor& x_bt, RowRange rows) {
  return x_bt.defined() ? x_bt.narrow(1, rows.begin, rows.size()) : x_bt;
}

Places query_rows(const Places& places, RowRange rows) {
  Places some = places;
  some.query_positions_bt = batch_rows(places.query_positions_bt, rows);
  some.query_documents_bt = batch_rows(places.query_documents_bt, rows);
  return some;
}

// From the first to the last key that any row sees.
RowRange visible_keys(const StageRows& rows) {
  const AttentionCall& call = rows.call;
  if (!rows.allowed.is_cpu()) {
    const Places places = host_places(call.context, call.q.size(2), call.k.size(2));
    const auto [first, count] =
        reachable_keys(call.spec.mask, places, rows.rows.begin, rows.rows.size());
    return {first, first + count};
  }
  const at::Tensor seen = rows.allowed.flatten(0, 2).any(0).nonzero();
  if (seen.numel() == 0) return {};
  return {seen[0].item<int64_t>(), seen[-1].item<int64_t>() + 1};
}

// What takes the place of q.k where a mechanism has it.
at::Tensor scores_of(const AttentionCall& call, const at::Tensor& q, const at::Tensor& k,
                     const at::Tensor& tau_bt) {
  for (const Mechanism* mechanism : mechanisms()) {
    if (mechanism->scores == nullptr) continue;
    if (at::Tensor x = mechanism->scores(call, q, k, tau_bt); x.defined()) return x;
  }
  return scaled_logits(call.spec, q, k, tau_bt);
}

}  // namespace

at::Tensor last_rows(const at::Tensor& x, int64_t count) {
  return x.size(2) == count ? x : x.narrow(2, x.size(2) - count, count);
}

at::Tensor StageRows::scores(const at::Tensor& queries, const at::Tensor& all_keys) const {
  const at::ScalarType dtype = call.q.scalar_type();
  const at::Tensor q = queries.narrow(2, rows.begin, rows.size()).to(dtype),
                   k = all_keys.narrow(2, keys.begin, keys.size()).to(dtype);
  finite = finite && all_finite(q) && all_finite(k);
  return scores_of(call, q, k, batch_rows(call.tensors.tau_bt, rows));
}

at::Tensor StageRows::weigh(const at::Tensor& weights, const at::Tensor& values) const {
  return weighted_values(weights, values.narrow(2, keys.begin, keys.size()));
}

at::Tensor StageRows::allowed_results() const { return last_rows(allowed, results); }

void StageRows::keep_last_rows(int64_t count) {
  const RowRange last{rows.size() - count, rows.size()};
  if (last.begin == 0) return;
  places = query_rows(places, last);
  allowed = last_rows(allowed, count);
  rows.begin += last.begin;
}

void StageRows::keep_visible_keys() {
  const RowRange seen = visible_keys(*this);
  places.key_positions_bs = batch_rows(places.key_positions_bs, seen);
  places.key_documents_bs = batch_rows(places.key_documents_bs, seen);
  allowed = allowed.narrow(3, seen.begin, seen.size());
  keys = {keys.begin + seen.begin, keys.begin + seen.end};
}

StageRows stage_rows(const AttentionCall& call, const Places& places, RowRange rows) {
  StageRows some{.call = call,
                 .rows = rows,
                 .keys = {0, call.k.size(2)},
                 .places = query_rows(places, rows),
                 .results = rows.size()};
  some.allowed = allowed_mask(call.spec.mask, some.places);
  for (const Mechanism* mechanism : mechanisms())
    if (mechanism->visible != nullptr) some.allowed = mechanism->visible(some.allowed, some);
  return some;
}

at::Tensor with_formulas(at::Tensor x, StageRows& rows) {
  for (const StageFormula& formula : stage_formulas(rows.stage)) {
    x = formula.apply(x, rows);
    rows.keep_last_rows(x.size(2));
  }
  return x;
}

}  // namespace fovea
