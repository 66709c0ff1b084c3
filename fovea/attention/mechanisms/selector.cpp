// What selectors share: dispatch, refusals, the blend toward the mean value.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/selector.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "fovea/attention/mechanisms/block_pairs.h"
#include "fovea/attention/mechanisms/magic_pig_choice.h"
#include "fovea/attention/mechanisms/sparq_choice.h"
#include "fovea/attention/spec.h"
#include "fovea/base/error.h"

namespace fovea {
bool has_selector(const AttentionSpec& spec) {
  return spec.sparq.active() || spec.magic_pig.active();
}

Selection select_keys(const SelectorRows& rows) {
  return rows.spec.sparq.active() ? sparq_selection(rows) : magic_pig_selection(rows);
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

void check_only_selector(const AttentionSpec& s, std::string_view name) {
  check_only_key_rule(s, name);
  require<UnsupportedError>(!s.sparq.active() || !s.magic_pig.active(), kSpecPlace,
                            "sparq with magic_pig is not defined (two choices of keys); set "
                            "sparq.components: 0 or magic_pig.bits: 0");
  require<UnsupportedError>(
      !s.routing.active() && !s.blocks.active() && !s.longformer.active() &&
          !s.streaming.active() && !s.performer.active(),
      kSpecPlace,
      "{} with routing, blocks, longformer, streaming or performer is not defined (two rules for "
      "distant pairs); remove one of them",
      name);
  require<UnsupportedError>(
      !s.differential && s.multi_token == MultiTokenSpec{} && s.head_mix == HeadMixSpec{},
      kSpecPlace,
      "{} with differential, multi_token or head_mix is not defined (each head reads other keys); "
      "remove one of them",
      name);
  require<UnsupportedError>(
      s.soft_cap == 0.0 && s.bias.kind == BiasSpec::Kind::none && !s.sink_logit && !s.own.active(),
      kSpecPlace,
      "{} with soft_cap, bias, sink_logit or own is not defined (the choice of keys knows q.k "
      "alone); remove one of them",
      name);
}

}  // namespace fovea
