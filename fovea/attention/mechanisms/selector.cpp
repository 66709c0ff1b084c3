// What selectors share: dispatch, refusals, the blend toward the mean value.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/selector.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "fovea/attention/mechanism.h"
#include "fovea/attention/specs/block_pairs.h"
#include "fovea/attention/stage_rows.h"
#include "fovea/base/error.h"

namespace fovea {

// No convolution reads over the rows of a selector: it chooses for all of them.
Selection select_keys(const StageRows& rows) {
  const AttentionCall& call = rows.call;
  for (const Mechanism* mechanism : mechanisms()) {
    if (mechanism->select == nullptr || !mechanism->key_rule(call.spec)) continue;
    const auto part = [](const at::Tensor& x, int64_t axis, RowRange range) {
      return x.defined() ? x.narrow(axis, range.begin, range.size()) : x;
    };
    const at::Tensor q = part(call.q, 2, rows.rows), k = part(call.k, 2, rows.keys),
                     tau = part(call.tensors.tau_bt, 1, rows.rows);
    return mechanism->select({.spec = call.spec,
                              .q_bhtd = q,
                              .k_bgsd = k,
                              .tau_bt = tau,
                              .allowed_b1ts = rows.allowed,
                              .places = rows.places,
                              .prompts_b = call.selector.prompts_b});
  }
  return {};
}

at::Tensor reallocated(const at::Tensor& weights, const at::Tensor& alpha,
                       const at::Tensor& allowed) {
  const at::Tensor share = alpha.unsqueeze(-1);
  const at::Tensor count = allowed.sum(-1, true).clamp_min(1).to(weights.scalar_type());
  return weights * share + (1.0 - share) * (allowed.to(weights.scalar_type()) / count);
}

at::Tensor largest(const at::Tensor& x, int64_t count) {
  const at::Tensor values = x.detach();
  const int64_t size = values.size(-1);
  if (count >= size) return at::ones_like(values, values.options().dtype(at::kBool));
  const at::Tensor order =
      values.argsort(/*stable=*/true, -1, /*descending=*/true).narrow(-1, 0, count);
  return at::zeros_like(values, values.options().dtype(at::kBool)).scatter_(-1, order, true);
}

}  // namespace fovea
