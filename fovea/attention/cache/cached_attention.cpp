// Attention over a cache.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cache/cached_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "fovea/attention/cache/selector_memory.h"
#include "fovea/attention/cache/sorted_copy.h"
#include "fovea/attention/call.h"
#include "fovea/attention/mask_terms.h"
#include "fovea/attention/mechanisms/head_output.h"
#include "fovea/attention/mechanisms/mechanism.h"
#include "fovea/attention/mechanisms/selector.h"
#include "fovea/attention/paths/grouped.h"
#include "fovea/attention/paths/path.h"
#include "fovea/attention/paths/performer.h"
#include "fovea/base/error.h"
#include "fovea/kernels/cpu/attention.h"

namespace fovea {
namespace {

// The prefix-temperature state after the last token of every sequence.
TemperatureState prefix_state(const AttentionCache& cache) {
  std::vector<double> sums;
  std::vector<int64_t> counts;
  for (int64_t b = 0; b < cache.batch(); ++b) {
    const at::Tensor all = cache.rows(stream::kTemperature, b);
    counts.push_back(all.size(1));
    sums.push_back(counts.back() > 0 ? all.select(1, -1).item<double>() : 0.0);
  }
  return {.sum_b = at::tensor(sums, at::kDouble), .count_b = at::tensor(counts, at::kLong)};
}

}  // namespace

at::Tensor cached_temperature(const TemperatureSpec& spec, int64_t head_dim,
                              const TemperatureParameters& parameters, const at::Tensor& x_btc,
                              AttentionCache& cache) {
  const at::NoGradGuard no_gradient;
  if (!keeps_prefix_sum(spec)) {
    require<UnsupportedError>(spec.form != TemperatureSpec::Form::sequence, "cache",
                              "temperature.form sequence needs the whole text and has no decode "
                              "(F-1, F-12); train with form prefix");
    return temperature_rows(spec, head_dim, parameters, x_btc, {}).tau_bt;
  }
  TemperatureState state = prefix_state(cache);
  const TemperatureRows rows = temperature_rows(spec, head_dim, parameters, x_btc, {}, &state);
  cache.append(stream::kTemperature, rows.sums_bt.unsqueeze(-1));
  return rows.tau_bt;
}

namespace {

// Keys, values, their groups and their places of a call from the cache.
struct CachedCall {
  at::Tensor keys_bgsd, values_bgse, groups_bsk, members_bs;
  AttentionContext context;
};

// Where rows are evicted between the sinks and the rest, columns that nobody sees stand for them
// (as many as a convolution can reach over).
void part_the_sinks(CachedCall& call, int64_t sinks, int64_t columns) {
  const auto spread = [&](const at::Tensor& x, int64_t dim) {
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes[static_cast<size_t>(dim)] = columns;
    return at::cat({x.narrow(dim, 0, sinks), at::zeros(sizes, x.options()),
                    x.narrow(dim, sinks, x.size(dim) - sinks)},
                   dim);
  };
  call.keys_bgsd = spread(call.keys_bgsd, 2);
  call.values_bgse = spread(call.values_bgse, 2);
  if (at::Tensor& x = call.groups_bsk; x.defined()) x = spread(x, 1);
  if (at::Tensor& x = call.members_bs; x.defined()) {
    x = spread(x, 1);
    x.narrow(1, sinks, columns).copy_(x.narrow(1, 0, 1));  // any set that is one
  }
  const at::Tensor positions = call.context.key_positions_bs;
  call.context.key_positions_bs = spread(positions, 0);
  call.context.key_documents_bs = spread(at::ones_like(positions), 0);
  call.context.query_documents_bt = at::ones_like(call.context.query_positions_bt);
}

/// All sequences of a cache, or one of them.
struct CacheView {
  const AttentionCache& cache;
  std::optional<int64_t> sequence;

  at::Tensor rows(const char* name) const {
    return sequence ? cache.rows(name, *sequence) : cache.rows(name);
  }
  /// Where the stream has it.
  at::Tensor rows_if(const char* name) const { return cache.has(name) ? rows(name) : at::Tensor(); }
  at::Tensor positions(const char* name) const {
    return cache.positions(name, sequence.value_or(0));
  }
  int64_t length(const char* name) const { return cache.stream_length(name, sequence.value_or(0)); }
  /// Of a tensor of all sequences.
  at::Tensor part(const at::Tensor& x) const {
    return x.defined() && sequence && x.size(0) == cache.batch() ? x.narrow(0, *sequence, 1) : x;
  }
};

CachedCall cached_call(const AttentionSpec& spec, const CacheView& cache, int64_t queries) {
  CachedCall call{.keys_bgsd = cache.rows(stream::kKeys).transpose(1, 2),
                  .values_bgse = cache.rows(stream::kValues).transpose(1, 2),
                  .groups_bsk = cache.rows_if(stream::kGroups),
                  .members_bs = cache.rows_if(stream::kMembers)};
  if (call.members_bs.defined()) call.members_bs = call.members_bs.squeeze(-1);
  const int64_t rows = call.keys_bgsd.size(2);
  // Where nothing was evicted the default places are right, and cheaper: the queries are the last
  // of the keys.
  if (rows == cache.length(stream::kKeys)) return call;
  call.context.key_positions_bs = cache.positions(stream::kKeys);
  call.context.query_positions_bt =
      call.context.key_positions_bs.narrow(0, rows - queries, queries);
  const KernelExtent &before = spec.multi_token.before, &after = spec.multi_token.after;
  const int64_t reach = std::max(before.keys, after.keys) / 2;  // to either side, or more
  if (const int64_t sinks = spec.mask.sinks; sinks > 0 && reach > 0) {
    const int64_t evicted = call.context.key_positions_bs[sinks].item<int64_t>() - sinks;
    if (evicted > 0) part_the_sinks(call, sinks, std::min(evicted, reach));
  }
  return call;
}

// Whether SortedKeys can take these queries.
bool can_read_sorted_keys(const AttentionSpec& spec, const at::Tensor& q) {
  return q.size(2) == 1 && spec.focus.gate == FocusSpec::Gate::hard && !spec.differential &&
         spec.mask == MaskRule{} && q.scalar_type() != at::kHalf &&
         kernels::prefers_decode({.heads = spec.heads, .kv_heads = spec.kv_heads, .queries = 1}) &&
         !why_not_by_plans({.spec = spec, .q = q});
}

// The new rows of every stream that attention reads.
void append_rows(AttentionCache& cache, const at::Tensor& q, const at::Tensor& k,
                 const at::Tensor& v, const AttentionTensors& tensors) {
  cache.append(stream::kKeys, k.transpose(1, 2));
  cache.append(stream::kValues, v.transpose(1, 2));
  if (cache.has(stream::kQueries)) cache.append(stream::kQueries, q.transpose(1, 2));
  if (cache.has(stream::kTau)) cache.append(stream::kTau, tensors.tau_bt.unsqueeze(-1));
  if (cache.has(stream::kGroups)) cache.append(stream::kGroups, tensors.groups_bsk);
  if (cache.has(stream::kMembers)) cache.append(stream::kMembers, tensors.members_bs.unsqueeze(-1));
  if (cache.has(stream::kRoutes))
    cache.append(stream::kRoutes, tensors.key_routes_bhs.transpose(1, 2));
  if (cache.has(stream::kNearness))
    cache.append(stream::kNearness, tensors.key_nearness_bhs.transpose(1, 2));
  if (cache.has(stream::kGlobalKeys)) {
    cache.append(stream::kGlobalKeys, tensors.global_k_bgsd.transpose(1, 2));
    cache.append(stream::kGlobalValues, tensors.global_v_bgse.transpose(1, 2));
  }
}

// The tensors of the call with everything that the cache holds of them.
AttentionTensors with_cached(const CacheView& cache, const CachedCall& call,
                             const AttentionTensors& tensors) {
  AttentionTensors all = tensors;
  all.tau_bt = cache.part(tensors.tau_bt);
  all.query_routes_bht = cache.part(tensors.query_routes_bht);
  all.start_q_bhtd = cache.part(tensors.start_q_bhtd);
  all.global_q_bhtd = cache.part(tensors.global_q_bhtd);
  const auto by_head = [&](const char* name) {
    const at::Tensor rows = cache.rows_if(name);
    return rows.defined() ? rows.transpose(1, 2) : rows;
  };
  if (cache.cache.has(stream::kTau)) all.tau_bt = cache.rows(stream::kTau).squeeze(-1);
  all.key_routes_bhs = by_head(stream::kRoutes);
  all.key_nearness_bhs = by_head(stream::kNearness);
  all.global_k_bgsd = by_head(stream::kGlobalKeys);
  all.global_v_bgse = by_head(stream::kGlobalValues);
  all.groups_bsk = call.groups_bsk;
  all.members_bs = call.members_bs;
  return all;
}

// The last t tokens of the cache, whose queries choose their keys.
AttentionResult attend_selected(const AttentionSpec& spec, const CacheView& cache,
                                const at::Tensor& q, const AttentionTensors& tensors, Path path,
                                SortedCopy* sorted) {
  const CachedCall cached = cached_call(spec, cache, q.size(2));
  AttentionCall call = checked_call(spec, cache.part(q), cached.keys_bgsd, cached.values_bgse,
                                    with_cached(cache, cached, tensors), cached.context);
  call.selector = selector_inputs(spec, cache.cache, cache.sequence);
  if (sorted != nullptr && path != Path::reference)
    sorted->tables.complete(call.selector, spec, cache.cache, q.size(2));
  return run_call(call, path);
}

// The last t tokens of the cache.
AttentionResult attend(const AttentionSpec& spec, const CacheView& cache, const at::Tensor& q,
                       const AttentionTensors& tensors, Path path, SortedCopy* sorted) {
  if (has_selector(spec)) return attend_selected(spec, cache, q, tensors, path, sorted);
  const at::Tensor earlier_queries = cache.rows_if(stream::kQueries);
  const at::Tensor queries =
      earlier_queries.defined() ? earlier_queries.transpose(1, 2) : cache.part(q);
  const CachedCall call = cached_call(spec, cache, queries.size(2));
  const AttentionTensors inputs = with_cached(cache, call, tensors);
  if (sorted != nullptr && path != Path::reference && can_read_sorted_keys(spec, q)) {
    if (const SortedKeys* keys = sorted->for_queries(cache.cache, spec.focus)) {
      if (std::optional<AttentionResult> result = keys->attend(spec, q, inputs, {})) {
        result->out_bhte = head_output(spec, result->out_bhte, inputs);
        return std::move(*result);
      }
    }
  }
  AttentionCall checked =
      checked_call(spec, queries, call.keys_bgsd, call.values_bgse, inputs, call.context);
  // The earlier queries are there for the convolutions alone.
  const int64_t t = q.size(2);
  checked.last_queries = t;
  AttentionResult result = run_checked(std::move(checked), path);
  const int64_t earlier = result.out_bhte.size(2) - t;
  if (earlier > 0) {
    result.out_bhte = result.out_bhte.narrow(2, earlier, t);
    if (result.lse_bht.defined()) result.lse_bht = result.lse_bht.narrow(2, earlier, t);
  }
  return result;
}

// The next tokens from a state of those before, which they join.
AttentionResult attend_to_sums(const AttentionCall& call, AttentionCache& cache, Path path) {
  const AttentionCall checked =
      checked_call(call.spec, call.q, call.k, call.v, call.tensors, call.context);
  const at::Tensor state = cache.replace(stream::kFeatureSums, call.q.size(2));
  AttentionResult result = performer_from_state(checked, state, path);
  result.out_bhte = head_output(call.spec, result.out_bhte, call.tensors).to(call.q.scalar_type());
  return result;
}

}  // namespace

AttentionResult cached_attention(const AttentionSpec& given, AttentionCache& cache,
                                 const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const AttentionTensors& given_tensors, Path path,
                                 SortedCopy* sorted) {
  const at::NoGradGuard no_gradient;
  require<UnsupportedError>(given.mask.causal, "cache",
                            "a cache needs mask.causal: later tokens must not change earlier rows");
  require<ShapeError>(q.dim() == 4 && k.dim() == 4 && q.size(2) == k.size(2), "cache",
                      "q and k of the new tokens must be [b, heads, t, d] with one t");
  AttentionCall call =
      in_mask_terms({.spec = given, .q = q, .k = k, .v = v, .tensors = given_tensors});
  rewrite_keys(call, &cache);
  const AttentionSpec& spec = call.spec;
  const AttentionTensors& tensors = call.tensors;
  AttentionResult result;
  if (spec.performer.active()) {
    result = attend_to_sums(call, cache, path);
    result.path.inner = result.path.name;
    result.path.name = PathName::decode;
    return result;
  }
  append_selector_rows(cache, spec, call.k, call.v);
  append_rows(cache, q, call.k, call.v, tensors);
  if (cache.equal_lengths()) {
    result = attend(spec, {cache, std::nullopt}, q, tensors, path, sorted);
  } else {
    std::vector<at::Tensor> outs, lses;
    for (int64_t b = 0; b < cache.batch(); ++b) {
      result = attend(spec, {cache, b}, q, tensors, path, nullptr);
      outs.push_back(result.out_bhte);
      lses.push_back(result.lse_bht);
    }
    result.out_bhte = at::cat(outs);
    if (result.lse_bht.defined()) result.lse_bht = at::cat(lses);
  }
  result.path.inner = result.path.name;
  result.path.name = PathName::decode;
  return result;
}

}  // namespace fovea
