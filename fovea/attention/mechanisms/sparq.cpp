// SparQ: keys, checks, the reference of its choice, the second layout of the keys in a cache.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/specs/sparq.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "fovea/attention/call.h"
#include "fovea/attention/isolation.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/mechanisms/selector.h"
#include "fovea/attention/mechanisms/sparq_choice.h"
#include "fovea/attention/pipeline.h"
#include "fovea/attention/stream_spec.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

// The key of the query itself and the last `recent` ones before it, [b or 1, 1, t, s].
at::Tensor latest(const at::Tensor& allowed, const Places& places, int64_t recent) {
  const at::Tensor positions =
      places.key_positions_bs.unsqueeze(1).unsqueeze(1).expand_as(allowed).masked_fill(
          allowed.logical_not(), -1);
  const int64_t count = std::min(recent + 1, positions.size(-1));
  const at::Tensor first = std::get<0>(positions.topk(count, -1)).narrow(-1, count - 1, 1);
  return positions.ge(first).logical_and(allowed);
}

}  // namespace

void SparqSpec::describe(FieldVisitor& v) {
  v.integer(
      {"components", "r: largest components of the query that choose keys; 0 = off (spec 4.4)",
       ranges::kPositionCounts},
      components);
  v.integer({"keys", "k: past keys that are read", ranges::kPositionCounts}, keys);
  v.integer(
      {"recent", "l: the last past keys, always read; -1 = keys / 4", {-1, ranges::kMostPositions}},
      recent);
  v.boolean({"reallocate", "the mean value gets the weight of keys that are not read"}, reallocate);
}

void SparqSpec::check() const {
  require<ConfigError>(components >= 0, kSpecPlace,
                       "sparq.components must be 0 (off) or larger; got {}", components);
  if (!active()) return;
  require<ConfigError>(keys >= 1, kSpecPlace, "sparq.keys must be at least 1; got {}", keys);
  require<ConfigError>(recent >= -1 && recent_keys() <= keys, kSpecPlace,
                       "sparq.recent must be -1 (keys / 4) to sparq.keys, among which the recent "
                       "ones are; got {} with {} keys",
                       recent, keys);
}

SparqRows sparq_rows(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& tau_bt) {
  const int64_t b = q.size(0), h = q.size(1), t = q.size(2), d = q.size(3), g = spec.kv_heads;
  const at::Tensor grouped = q.reshape({b, g, h / g, t, d});
  SparqRows rows;
  rows.components_bgtd = largest(grouped.detach().abs().sum(2), spec.sparq.components);
  rows.q_bhtd = (grouped * rows.components_bgtd.unsqueeze(2)).reshape({b, h, t, d});
  const at::Tensor whole = q.abs().sum(-1), part = rows.q_bhtd.abs().sum(-1);
  // A head whose chosen components are all 0 has logits of 0 under any scale.
  const at::Tensor some = part > 0;
  const at::Tensor share = at::where(some, part, 1.0) / at::where(some, whole, 1.0);
  rows.scale_bht = tau_bt.defined()
                       ? (tau_bt.to(q.scalar_type()).unsqueeze(1) * share.sqrt()).reciprocal()
                       : spec.logit_scale() / share.sqrt();
  return rows;
}

Selection sparq_selection(const SelectorRows& rows) {
  const SparqSpec& sparq = rows.spec.sparq;
  const at::Tensor& allowed = rows.allowed_b1ts;
  const SparqRows part = sparq_rows(rows.spec, rows.q_bhtd, rows.tau_bt);
  const int64_t b = part.q_bhtd.size(0), h = part.q_bhtd.size(1), t = part.q_bhtd.size(2),
                d = part.q_bhtd.size(3), g = rows.spec.kv_heads, s = rows.k_bgsd.size(2);
  const at::Tensor products =
      pair_scores(part.q_bhtd.reshape({b, g, h / g * t, d}), rows.k_bgsd).reshape({b, h, t, s});
  const at::Tensor logits =
      (products * part.scale_bht.unsqueeze(-1)).masked_fill(allowed.logical_not(), -kInfinity);
  const at::Tensor weights = softmax_rows(logits, {}, false).weights_bhts;
  if (s == 0) return {.chosen_bhts = allowed.expand({b, h, t, s})};
  const at::Tensor score =
      weights.detach()
          .reshape({b, g, h / g, t, s})
          .sum(2)
          .masked_fill(allowed.logical_not(), -1.0)
          .masked_fill(latest(allowed, rows.places, sparq.recent_keys()), kInfinity);
  Selection selection;
  selection.chosen_bhts = largest(score, sparq.keys + 1)
                              .logical_and(allowed)
                              .unsqueeze(2)
                              .expand({b, g, h / g, t, s})
                              .reshape({b, h, t, s});
  if (sparq.reallocate) selection.alpha_bht = (weights * selection.chosen_bhts).sum(-1);
  return selection;
}

namespace {

void check_sparq(const AttentionSpec& spec) {
  spec.sparq.check();
  if (!spec.sparq.active()) return;
  require<ConfigError>(spec.sparq.components <= spec.head_dim, kSpecPlace,
                       "sparq.components must be at most the head width {}; got {}", spec.head_dim,
                       spec.sparq.components);
}

std::vector<StageUse> sparq_uses(const AttentionSpec& spec) {
  const SparqSpec& s = spec.sparq;
  if (!s.active()) return {};
  return {{.stage = StageId::allowed,
           .setting = fmt::format("sparq {} by {} components", s.keys, s.components),
           .why_not_sdpa = "the query chooses its keys"}};
}

// Sums of the values up to each of the next tokens, [b, t, g, e].
constexpr const char* kValueSums = "value_sums";

at::Tensor running_sums(const AttentionCall& call, const CachedStreams& cache) {
  const at::Tensor values = call.v.transpose(1, 2);
  at::Tensor sums = values.size(1) == 1 ? values.to(at::kDouble, /*non_blocking=*/false, true)
                                        : values.cumsum(1, at::kDouble);
  for (int64_t b = 0; b < sums.size(0); ++b) {
    const at::Tensor before = cache.rows(kValueSums, b);
    if (before.size(1) > 0) sums.select(0, b).add_(before.select(0, 0).select(0, -1));
  }
  return sums;
}

at::Tensor component_rows(const AttentionCall& call, const CachedStreams& /*cache*/) {
  const at::Tensor& k = call.k;
  return k.permute({0, 2, 1, 3}).reshape({k.size(0), k.size(2), k.size(1) * k.size(3), 1});
}

// Component c of key head g is row g d + c of heads one number wide: the keys of one component lie
// side by side, and a query reads r of d.
void add_streams_sparq(const AttentionSpec& spec, const StreamSpec& keys,
                       std::vector<StreamSpec>& all) {
  if (!spec.sparq.active()) return;
  all.push_back({.name = "key_components",
                 .row_shape = {spec.kv_heads * spec.head_dim, 1},
                 .dtype = keys.dtype,
                 .by_head = true,
                 .new_rows = component_rows,
                 .set_rows = [](AttentionCall& call, const at::Tensor& rows) {
                   const at::Tensor components = rows.squeeze(-1).transpose(1, 2);  // [b, g d, s]
                   call.selector.key_components_bgds =
                       components.unflatten(1, {call.spec.kv_heads, call.spec.head_dim});
                 }});
  if (!spec.sparq.reallocate) return;
  all.push_back({.name = kValueSums,
                 .row_shape = {spec.value_heads(), spec.value_width()},
                 .dtype = keys.dtype == at::kDouble ? at::kDouble : at::kFloat,
                 .new_rows = running_sums,
                 .set_rows = [](AttentionCall& call, const at::Tensor& rows) {
                   if (rows.size(1) > 0)
                     call.selector.value_sums_bge = rows.select(1, -1).to(at::kDouble);
                 }});
}

constexpr MechanismSetting kSparqSettings[] = {
    {"SparQ", [](AttentionSpec& s) { s.sparq.components = 4; }},
};

}  // namespace

const Mechanism& sparq_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "sparq",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.nested({"sparq", "stage 6: keys chosen by the query's largest components (spec 4.4)"},
                     spec.sparq);
          },
      .check = check_sparq,
      .uses = sparq_uses,
      .select = sparq_selection,
      .add_streams = add_streams_sparq,
      .settings = kSparqSettings,
      .remove = [](AttentionSpec& spec) { spec.sparq = {}; },
      .key_rule = [](const AttentionSpec& spec) -> std::optional<KeyRule> {
        return spec.sparq.active() ? std::optional(KeyRule::selected) : std::nullopt;
      },
      .fixed_choice = [](const AttentionSpec& spec, double visible) -> std::optional<FixedChoice> {
        const SparqSpec& s = spec.sparq;
        if (!s.active()) return std::nullopt;
        return FixedChoice{
            .keys = std::min(visible, static_cast<double>(s.keys + 1)),
            .searched = static_cast<double>(s.components) / static_cast<double>(spec.head_dim)};
      },
  };
  return mechanism;
}

}  // namespace fovea
