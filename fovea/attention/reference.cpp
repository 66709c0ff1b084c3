// The reference: attention as a composition of plain tensor operations, in the order of the stage
// table. It is the definition.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>

#include "fovea/attention/isolation.h"
#include "fovea/attention/mechanisms/block_pairs.h"
#include "fovea/attention/mechanisms/differential.h"
#include "fovea/attention/mechanisms/focus.h"
#include "fovea/attention/mechanisms/longformer_rule.h"
#include "fovea/attention/mechanisms/multi_token.h"
#include "fovea/attention/mechanisms/own_stage.h"
#include "fovea/attention/mechanisms/performer_features.h"
#include "fovea/attention/mechanisms/routing.h"
#include "fovea/attention/mechanisms/selector.h"
#include "fovea/attention/mechanisms/streaming_rule.h"
#include "fovea/attention/mechanisms/talking_heads.h"
#include "fovea/attention/pipeline.h"
#include "fovea/attention/positions/bias.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

at::Tensor batch_rows(const at::Tensor& x_bt, RowRange rows) {
  return x_bt.defined() ? x_bt.narrow(1, rows.begin, rows.end - rows.begin) : x_bt;
}

Places query_rows(const Places& places, RowRange rows) {
  Places some = places;
  some.query_positions_bt = batch_rows(places.query_positions_bt, rows);
  some.query_documents_bt = batch_rows(places.query_documents_bt, rows);
  return some;
}

Places key_columns(const Places& places, int64_t first, int64_t count) {
  Places some = places;
  some.key_positions_bs = places.key_positions_bs.narrow(1, first, count);
  if (places.key_documents_bs.defined())
    some.key_documents_bs = places.key_documents_bs.narrow(1, first, count);
  return some;
}

// The first and last key that any row sees, as {first, count}.
std::pair<int64_t, int64_t> visible_keys(const at::Tensor& allowed_b1ts) {
  const at::Tensor seen = allowed_b1ts.flatten(0, 2).any(0).nonzero();
  if (seen.numel() == 0) return {0, 0};
  const int64_t first = seen[0].item<int64_t>();
  return {first, seen[-1].item<int64_t>() - first + 1};
}

// Rows of convolved weights divided by their sum, where there is one (M-9).
at::Tensor renormalised(const at::Tensor& weights) {
  const at::Tensor sum = weights.sum(-1, true);
  constexpr double smallest = 1e-6;
  return weights / at::where(sum.abs() > smallest, sum, at::ones_like(sum));
}

// The last rows of a tensor [b, h, rows, s] or mask [b, 1, rows, s].
at::Tensor last_rows(const at::Tensor& x, int64_t count) {
  return x.narrow(2, x.size(2) - count, count);
}

// Stage 1, of which some pairs have queries and keys of their own.
struct PairLogits {
  at::Tensor logits;
  bool finite = true;  // all queries and keys are
};
PairLogits pair_logits(const AttentionCall& call, RowRange rows, RowRange keys,
                       const Places& places) {
  const AttentionTensors& tensors = call.tensors;
  const at::ScalarType dtype = call.q.scalar_type();
  const at::Tensor tau = batch_rows(tensors.tau_bt, rows);
  PairLogits all;
  const auto read = [&](const at::Tensor& queries, const at::Tensor& of_keys) {
    const at::Tensor q = queries.narrow(2, rows.begin, rows.end - rows.begin).to(dtype),
                     k = of_keys.narrow(2, keys.begin, keys.end - keys.begin).to(dtype);
    all.finite = all.finite && all_finite(q) && all_finite(k);
    return call.spec.performer.active() ? performer_logits(call, q, k, tau)
                                        : scaled_logits(call.spec, q, k, tau);
  };
  all.logits = read(call.q, call.k);
  if (const at::Tensor& q = tensors.start_q_bhtd; q.defined())
    all.logits = at::where(start_keys(call.spec.streaming, places), read(q, call.k), all.logits);
  if (const at::Tensor& q = tensors.global_q_bhtd; q.defined()) {
    const at::Tensor global = global_tokens(call.spec.longformer, places.query_positions_bt);
    all.logits =
        at::where(global.unsqueeze(1).unsqueeze(3), read(q, tensors.global_k_bgsd), all.logits);
  }
  return all;
}

// Stages 1 to 4: logits of the last `results` rows, not masked.
at::Tensor mixed_logits(const AttentionCall& call, const PairLogits& pairs, const Places& places,
                        const at::Tensor& allowed, int64_t results) {
  const AttentionSpec& spec = call.spec;
  const AttentionTensors& tensors = call.tensors;
  const MultiTokenSpec& tokens = spec.multi_token;
  at::Tensor s = pairs.logits;
  // What is not finite and not seen passes through no stage.
  if (!pairs.finite) s = s.masked_fill((~allowed).logical_and(s.isfinite().logical_not()), 0.0);
  if (spec.soft_cap > 0.0) s = at::tanh(s / spec.soft_cap) * spec.soft_cap;
  if (tokens.before.active()) {
    if (tokens.equation == MultiTokenSpec::Equation::eq5) s = s.masked_fill(~allowed, 0.0);
    s = key_query_convolution(tokens.equation, s, tensors.kernel_before_hqk, results,
                              places.query_documents_bt, last_rows(allowed, results));
  } else {
    s = last_rows(s, results);
  }
  return spec.head_mix.before == HeadMixSpec::Kind::none ? s
                                                         : mix_logits(s, tensors.mix_before_noi);
}

// The stage that the program registered.
at::Tensor own_logits(const AttentionCall& call, const at::Tensor& logits, const Places& places) {
  const AttentionSpec& spec = call.spec;
  const AttentionTensors& tensors = call.tensors;
  const at::Tensor weight =
      tensors.own.defined() ? tensors.own.to(logits.scalar_type()) : at::Tensor();
  const at::Tensor changed =
      own_stage(spec.own.name)
          .apply(logits,
                 {.spec = spec, .weight = weight, .distance_bts = counted_distances(spec, places)});
  require<ShapeError>(changed.defined() && changed.sizes() == logits.sizes(), "own stage",
                      "'{}' must return logits of the shape that it got, [{}]", spec.own.name,
                      fmt::join(logits.sizes(), ", "));
  return changed;
}

// What a selector says of rows that no convolution reads over (check_only_selector()).
Selection selected_keys(const AttentionCall& call, const at::Tensor& q_rows, const at::Tensor& k,
                        RowRange rows, const at::Tensor& allowed, const Places& places) {
  if (!has_selector(call.spec)) return {};
  const at::Tensor tau = batch_rows(call.tensors.tau_bt, rows);
  return select_keys({.spec = call.spec,
                      .q_bhtd = q_rows,
                      .k_bgsd = k,
                      .tau_bt = tau,
                      .allowed_b1ts = allowed,
                      .places = places,
                      .prompts_b = call.selector.prompts_b});
}

// Stages 8 and 9 on weights that are 0 where not allowed: those of the rows of `seen`.
at::Tensor mixed_weights(const AttentionCall& call, const at::Tensor& weights,
                         const at::Tensor& documents_bt, const at::Tensor& seen) {
  const AttentionSpec& spec = call.spec;
  const AttentionTensors& tensors = call.tensors;
  at::Tensor p = last_rows(weights, seen.size(2));
  if (spec.multi_token.after.active()) {
    p = key_query_convolution(MultiTokenSpec::Equation::eq5, weights, tensors.kernel_after_hqk,
                              seen.size(2), documents_bt, {})
            .masked_fill(~seen, 0.0);
    if (spec.multi_token.renormalise) p = renormalised(p);
  }
  return spec.head_mix.after == HeadMixSpec::Kind::none ? p : mix_weights(p, tensors.mix_after_nio);
}

}  // namespace

RowWeights weights_of_rows(const AttentionCall& call, const Places& all, RowRange rows,
                           bool want_lse, bool only_visible_keys) {
  const AttentionSpec& spec = call.spec;
  const AttentionTensors& tensors = call.tensors;
  const at::Tensor& q = call.q;
  const MultiTokenSpec& tokens = spec.multi_token;
  // Rows that enter, the last of which get weights, the last of which are wanted.
  const RowRange entering{std::max<int64_t>(0, rows.begin - tokens.earlier_queries()), rows.end};
  const RowRange weighted{std::max<int64_t>(0, rows.begin - tokens.after.earlier_queries()),
                          rows.end};
  Places places = query_rows(all, entering);
  at::Tensor allowed = allowed_mask(spec.mask, places);
  RowRange keys{0, call.k.size(2)};
  FocusPairs groups;
  if (spec.focus.active()) {
    groups = focus_pairs(tensors, call.k.size(2) - q.size(2) + entering.begin,
                         entering.end - entering.begin);
    if (spec.focus.gate == FocusSpec::Gate::hard)
      allowed = allowed.logical_and(focus_visible(spec.focus, groups, places));
  }
  if (spec.routing.active())
    allowed = routing_visible(spec.routing, tensors, entering.begin, allowed, places);
  if (spec.blocks.active()) allowed = block_pairs_visible(spec.blocks, allowed, places);
  if (spec.longformer.active())
    allowed = longformer_visible(spec.longformer, spec.heads, allowed, places);
  if (spec.streaming.active())
    allowed = allowed.logical_and(allowed_mask(pairs_of(spec.streaming), places));
  RowWeights result;
  if (only_visible_keys) {
    const auto [first, count] = visible_keys(allowed);
    result.first_key = first;
    keys = {first, first + count};
    allowed = allowed.narrow(3, first, count);
    places = key_columns(places, first, count);
    groups = groups.keys(first, count);
  }
  const PairLogits pairs = pair_logits(call, entering, keys, places);
  at::Tensor logits = mixed_logits(call, pairs, places, allowed, weighted.end - weighted.begin);
  const RowRange last{weighted.begin - entering.begin, weighted.end - entering.begin};
  places = query_rows(places, last);
  const Selection selection =
      selected_keys(call, call.q.narrow(2, entering.begin, entering.end - entering.begin),
                    call.k.narrow(2, keys.begin, keys.end - keys.begin), rows, allowed, places);
  const at::Tensor seen = selection.chosen_bhts.defined()
                              ? selection.chosen_bhts
                              : last_rows(allowed, last.end - last.begin);
  if (selection.log_weights_bhts.defined()) logits = logits + selection.log_weights_bhts;
  if (spec.own.active()) logits = own_logits(call, logits, places);
  if (spec.focus.reads_groups())
    logits = focus_gate(spec.focus, logits, groups.last_rows(last.end - last.begin), places);
  const at::Tensor bias = position_bias(spec, tensors, places, logits.scalar_type());
  Softmax softmax =
      softmax_rows((bias.defined() ? logits + bias : logits).masked_fill(~seen, -kInfinity),
                   tensors.sink_logit_h, want_lse);
  // A row of NaN weighs what it does not see, too.
  if (!pairs.finite) softmax.weights_bhts = softmax.weights_bhts.masked_fill(~seen, 0.0);
  if (selection.alpha_bht.defined()) {
    softmax.weights_bhts = reallocated(softmax.weights_bhts, selection.alpha_bht, allowed);
    result.weights_bhts = result.softmax_bhts = softmax.weights_bhts;
    result.lse_bht = softmax.lse_bht;
    return result;
  }
  const int64_t count = rows.end - rows.begin;
  result.softmax_bhts = last_rows(softmax.weights_bhts, count);
  if (want_lse)
    result.lse_bht = softmax.lse_bht.narrow(2, weighted.end - weighted.begin - count, count);
  result.weights_bhts =
      mixed_weights(call, softmax.weights_bhts, places.query_documents_bt, last_rows(seen, count));
  return result;
}

namespace {

// The call with q and k in accumulate_type(), for maps and telemetry.
AttentionCall widened(AttentionCall call) {
  const at::ScalarType wide = accumulate_type(call.q.scalar_type());
  call.q = call.q.to(wide);
  call.k = call.k.to(wide);
  return call;
}

at::Tensor rows_of_call(const AttentionCall& given, std::span<const int64_t> heads,
                        std::span<const int64_t> queries) {
  const AttentionCall call = widened(given);
  const at::Tensor& q = call.q;
  const Places& places = call.places();
  const at::Tensor chosen =
      at::tensor(at::IntArrayRef(heads.data(), heads.size()), at::kLong).to(q.device());
  std::vector<at::Tensor> parts;
  // Neighbouring rows together: they share the rows that a convolution reads.
  for (size_t n = 0; n < queries.size();) {
    size_t end = n + 1;
    while (end < queries.size() && queries[end] == queries[end - 1] + 1) ++end;
    const RowRange rows{queries[n], queries[n] + static_cast<int64_t>(end - n)};
    parts.push_back(weights_of_rows(call, places, rows, false, false)
                        .weights_bhts.index_select(1, chosen)
                        .to(at::kFloat));
    n = end;
  }
  if (parts.empty())
    return at::zeros({q.size(0), std::ssize(heads), 0, call.k.size(2)},
                     q.options().dtype(at::kFloat));
  return at::cat(parts, 2);
}

}  // namespace

at::Tensor attention_rows(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                          const AttentionTensors& tensors, const AttentionContext& context,
                          std::span<const int64_t> heads, std::span<const int64_t> queries) {
  const at::NoGradGuard no_gradient;
  const AttentionCall call = checked_call_without_values(spec, q, k, tensors, context);
  for (const int64_t head : heads) {
    require<ShapeError>(head >= 0 && head < spec.output_heads(), "attention_rows",
                        "heads must be below {}; got {}", spec.output_heads(), head);
  }
  for (const int64_t row : queries) {
    require<ShapeError>(row >= 0 && row < q.size(2), "attention_rows",
                        "queries must be below {}; got {}", q.size(2), row);
  }
  if (!spec.differential) return rows_of_call(call, heads, queries);
  const at::Tensor first = rows_of_call(differential_map(call, 0), heads, queries),
                   second = rows_of_call(differential_map(call, 1), heads, queries);
  return first - differential_lambda(spec, tensors).to(at::kFloat) * second;
}

AttentionStats stats_of(const AttentionCall& given) {
  const at::NoGradGuard no_gradient;
  const AttentionCall call = widened(given);
  const int64_t queries = call.q.size(2);
  const Places& places = call.places();
  const at::Tensor p = weights_of_rows(call, places, {0, queries}, false, false).softmax_bhts;
  const auto mean = [](const at::Tensor& x_bht) {
    return x_bht.mean(at::IntArrayRef{0, 2}).to(at::kFloat);
  };
  at::Tensor first = (places.key_positions_bs == 0).unsqueeze(1);  // [b or 1, 1, s]
  return {.entropy_h = mean(-at::xlogy(p, p).sum(-1)),
          .largest_weight_h = mean(p.numel() > 0 ? at::amax(p, -1) : p.sum(-1)),
          .sink_mass_h = mean((p * first.unsqueeze(2).to(p.scalar_type())).sum(-1))};
}

AttentionStats attention_stats(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                               const AttentionTensors& tensors, const AttentionContext& context) {
  const at::NoGradGuard no_gradient;
  const AttentionCall call = checked_call_without_values(spec, q, k, tensors, context);
  if (!spec.differential) return stats_of(call);
  return both_maps(stats_of(differential_map(call, 0)), stats_of(differential_map(call, 1)));
}

}  // namespace fovea
