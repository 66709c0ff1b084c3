// Attention over a cache.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/decode/cached_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "fovea/attention/backend.h"
#include "fovea/attention/cache/sorted_copy.h"
#include "fovea/attention/call.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/mechanisms/head_output.h"
#include "fovea/attention/paths/grouped.h"
#include "fovea/attention/paths/path.h"
#include "fovea/attention/paths/sums.h"
#include "fovea/attention/places.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

// The prefix-temperature state after the last token of every sequence.
TemperatureState prefix_state(const AttentionCache& cache) {
  std::vector<at::Tensor> sums, counts;
  for (int64_t b = 0; b < cache.batch(); ++b) {
    const at::Tensor all = cache.rows(stream::kTemperature, b);
    const int64_t count = all.size(1);
    counts.push_back(at::full({1}, count, all.options().dtype(at::kLong)));
    sums.push_back(count > 0 ? all.select(1, -1).flatten() : at::zeros({1}, all.options()));
  }
  return {.sum_b = at::cat(sums), .count_b = at::cat(counts)};
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

// Columns that nobody sees, which stand behind the sinks for the rows that were evicted there (as
// many as a convolution can reach over).
struct EvictedColumns {
  int64_t sinks = 0, count = 0;
};

// Rows [b, n, ...] with the first one in such columns; rows of heads lie head by head in memory.
at::Tensor with_columns(const at::Tensor& rows, int64_t dim, const EvictedColumns& evicted) {
  if (evicted.count == 0) return rows;
  if (rows.dim() == 4 && dim == 1)
    return with_columns(rows.transpose(1, 2), 2, evicted).transpose(1, 2);
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes[static_cast<size_t>(dim)] = evicted.count;
  return at::cat({rows.narrow(dim, 0, evicted.sinks), rows.narrow(dim, 0, 1).expand(sizes),
                  rows.narrow(dim, evicted.sinks, rows.size(dim) - evicted.sinks)},
                 dim);
}

EvictedColumns evicted_columns(const AttentionSpec& spec, const at::Tensor& key_positions_s) {
  const int64_t reach = columns_beside(spec);
  const int64_t sinks = spec.mask.sinks;
  if (sinks == 0 || reach == 0) return {};
  const int64_t evicted = key_positions_s[sinks].item<int64_t>() - sinks;
  return {.sinks = sinks, .count = std::clamp<int64_t>(evicted, 0, reach)};
}

// All sequences of a cache, or one of them.
struct CacheView {
  const AttentionCache& cache;
  std::optional<int64_t> sequence;

  // Sets the tensors of the call that have a stream.
  void set_rows(AttentionCall& call, const EvictedColumns& evicted = {}) const {
    for (size_t i = 0; i < cache.stream_count(); ++i) {
      const StreamSpec& stream = cache.stream_spec(i);
      if (stream.set_rows == nullptr) continue;
      const at::Tensor rows =
          sequence ? cache.rows(stream.name, *sequence) : cache.rows(stream.name);
      stream.set_rows(call, stream.keep_first > 0 ? with_columns(rows, 1, evicted) : rows);
    }
  }
  // The call of one sequence.
  void narrow(AttentionCall& call) const {
    if (!sequence) return;
    const auto narrow = [&](at::Tensor& x) {
      if (x.defined() && x.size(0) == cache.batch()) x = x.narrow(0, *sequence, 1);
    };
    narrow(call.q);
    for (const Mechanism* mechanism : mechanisms())
      for (const TensorSlot& slot : mechanism->tensors)
        if (slot.token_axis > 0) narrow(call.tensors.*slot.member);
  }
};

// Places of the last tokens and of all keys, the evicted columns in a document of their own.
Places places_of(const at::Tensor& positions_s, int64_t queries, const EvictedColumns& evicted) {
  Places places{.query_positions_bt = positions_s.narrow(0, positions_s.size(0) - queries, queries),
                .key_positions_bs = with_columns(positions_s, 0, evicted)};
  if (evicted.count == 0) return places;
  places.key_documents_bs = at::ones_like(places.key_positions_bs);
  places.key_documents_bs.narrow(0, evicted.sinks, evicted.count).zero_();
  places.query_documents_bt = at::ones_like(places.query_positions_bt);
  return places;
}

// A call of the last tokens with all that the cache holds.
AttentionCall with_cached_rows(AttentionCall call, const CacheView& view) {
  view.narrow(call);
  view.set_rows(call);
  const int64_t rows = call.k.size(2), queries = call.q.size(2),
                sequence = view.sequence.value_or(0);
  // Where nothing was evicted the default places are right, and cheaper: the queries are the last
  // of the keys.
  if (rows == view.cache.stream_length(stream::kKeys, sequence)) return call;
  const at::Tensor here = view.cache.positions(stream::kKeys, sequence, at::kCPU);
  const EvictedColumns evicted = evicted_columns(call.spec, here);
  if (evicted.count > 0) view.set_rows(call, evicted);
  const Places places = places_of(here, queries, evicted);
  if (call.q.is_cpu()) {
    set_places(call.context, places);
  } else {
    const at::Tensor there = view.cache.positions(stream::kKeys, sequence, call.q.device());
    set_places(call.context, places_of(there, queries, evicted));
    call.context.on_host = std::make_shared<const Places>(places);
  }
  return call;
}

// Whether SortedKeys can take these queries.
bool can_read_sorted_keys(const AttentionSpec& spec, const at::Tensor& q) {
  const kernels::Backend* const backend = backend_of(q.device());
  return backend != nullptr && q.size(2) == 1 && spec.focus.gate == FocusSpec::Gate::hard &&
         !spec.differential && spec.mask == MaskRule{} && q.scalar_type() != at::kHalf &&
         backend->prefers_decode(sizes_of(spec)) && !why_not_by_plans({.spec = spec, .q = q});
}

}  // namespace

std::optional<AttentionResult> attend_sorted(const SortedKeys& keys, const AttentionSpec& spec,
                                             const at::Tensor& q, const AttentionTensors& tensors,
                                             const AttentionContext& context) {
  const AttentionCall call{.spec = spec,
                           .q = q,
                           .k = keys.keys_bgsd(),
                           .v = keys.values_bgse(),
                           .tensors = tensors,
                           .context = context};
  if (q.size(2) != 1 || why_not_decoding(call)) return std::nullopt;
  IntRowList seen;
  for (int64_t b = 0; b < keys.batch(); ++b) seen.add_row(keys.slots_seen(spec.focus, b));
  AttentionResult result = run_decoding(call, seen.view());
  result.path.name = PathName::grouped;
  result.path.plan = PlanWord::sorted;
  result.path.reason = {.kind = PathReason::Kind::one_query,
                        .detail = fmt::format("{} of {} keys, sorted by their set of groups",
                                              seen.of(0).size(), keys.length(0))};
  return result;
}

namespace {

// The last t tokens of the cache.
AttentionResult attend(AttentionCall given, const CacheView& view, Path path, SortedCopy* sorted) {
  const int64_t t = given.q.size(2);
  AttentionCall call = with_cached_rows(std::move(given), view);
  if (path == Path::reference) sorted = nullptr;
  if (sorted != nullptr && can_read_sorted_keys(call.spec, call.q)) {
    if (const SortedKeys* keys = sorted->for_queries(view.cache, call.spec.focus)) {
      if (std::optional<AttentionResult> result =
              attend_sorted(*keys, call.spec, call.q, call.tensors, {})) {
        result->out_bhte = head_output(call.spec, result->out_bhte, call.tensors);
        return std::move(*result);
      }
    }
  }
  call = checked_call(std::move(call));
  if (sorted != nullptr) sorted->tables.complete(call.selector, call.spec, view.cache, t);
  // The earlier queries are there for the convolutions alone.
  call.last_queries = t;
  AttentionResult result = run_checked(std::move(call), path);
  const int64_t earlier = result.out_bhte.size(2) - t;
  if (earlier > 0) {
    result.out_bhte = result.out_bhte.narrow(2, earlier, t);
    if (result.lse_bht.defined()) result.lse_bht = result.lse_bht.narrow(2, earlier, t);
  }
  return result;
}

// The next tokens from a state of those before, which they join.
AttentionResult attend_to_sums(AttentionCall given, AttentionCache& cache, Path path) {
  const AttentionCall call = checked_call(std::move(given));
  const at::Tensor state = cache.replace(stream::kFeatureSums, call.q.size(2));
  AttentionResult result = sums_from_state(call, state, path);
  result.out_bhte = head_output(call.spec, result.out_bhte, call.tensors).to(call.q.scalar_type());
  return result;
}

AttentionResult attend_to_all(AttentionCall call, AttentionCache& cache, Path path,
                              SortedCopy* sorted) {
  if (call.key_rule() == KeyRule::sums) return attend_to_sums(std::move(call), cache, path);
  append_rows(cache, call);
  if (cache.equal_lengths()) return attend(std::move(call), {cache, std::nullopt}, path, sorted);
  AttentionResult result;
  std::vector<at::Tensor> outs, lses;
  for (int64_t b = 0; b < cache.batch(); ++b) {
    result = attend(call, {cache, b}, path, nullptr);
    outs.push_back(result.out_bhte);
    lses.push_back(result.lse_bht);
  }
  result.out_bhte = at::cat(outs);
  if (result.lse_bht.defined()) result.lse_bht = at::cat(lses);
  return result;
}

}  // namespace

void append_rows(AttentionCache& cache, const AttentionCall& call) {
  for (size_t i = 0; i < cache.stream_count(); ++i) {
    const StreamSpec& stream = cache.stream_spec(i);
    if (stream.new_rows != nullptr) cache.append(stream.name, stream.new_rows(call, cache));
  }
}

AttentionResult cached_attention(const AttentionSpec& spec, AttentionCache& cache,
                                 const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const AttentionTensors& tensors, Path path, SortedCopy* sorted) {
  const at::NoGradGuard no_gradient;
  require<UnsupportedError>(spec.mask.causal, "cache",
                            "a cache needs mask.causal: later tokens must not change earlier rows");
  require<ShapeError>(q.dim() == 4 && k.dim() == 4 && q.size(2) == k.size(2), "cache",
                      "q and k of the new tokens must be [b, heads, t, d] with one t");
  AttentionCall call = in_mask_terms({.spec = spec, .q = q, .k = k, .v = v, .tensors = tensors});
  rewrite_keys(call, &cache);
  AttentionResult result = attend_to_all(std::move(call), cache, path, sorted);
  result.path.inner = result.path.name;
  result.path.name = PathName::decode;
  return result;
}

}  // namespace fovea
