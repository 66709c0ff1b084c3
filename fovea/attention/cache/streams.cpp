// The streams that each mechanism needs.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cache/streams.h"

#include <algorithm>

#include "fovea/attention/cache/huge_pages.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

// Groups of the cached keys; the queries are the last of them.
void add_focus_streams(const FocusSpec& focus, at::ScalarType dtype, const StreamSpec& keys,
                       std::vector<StreamSpec>& streams) {
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const auto beside_keys = [&](const char* name, std::vector<int64_t> shape, at::ScalarType type) {
    StreamSpec stream = keys;
    stream.name = name, stream.row_shape = std::move(shape), stream.dtype = type;
    stream.by_head = false;
    streams.push_back(std::move(stream));
  };
  if (focus.reads_groups()) beside_keys(stream::kGroups, {focus.groups}, wide);
  if (focus.reads_members()) beside_keys(stream::kMembers, {1}, at::kLong);
  if (focus.active() && focus.assignment == FocusSpec::Assignment::sinkhorn &&
      focus.potentials == FocusSpec::Potentials::chunk)
    streams.push_back({.name = stream::kGroupScores, .row_shape = {focus.groups}, .dtype = wide});
}

}  // namespace

bool keeps_prefix_sum(const TemperatureSpec& spec) {
  return spec.kind == TemperatureSpec::Kind::learned && spec.form == TemperatureSpec::Form::prefix;
}

// Twice the kept rows let most appends write in place: rows move once in keep_last tokens.
int64_t resting_rows(const StreamSpec& spec, int64_t capacity) {
  return spec.keep_last > 0 ? std::min(capacity, 2 * spec.keep_last) : capacity;
}

std::vector<int64_t> rows_shape(const StreamSpec& spec, int64_t batch, int64_t rows) {
  std::vector<int64_t> shape{batch, rows};
  shape.insert(shape.end(), spec.row_shape.begin(), spec.row_shape.end());
  return shape;
}

std::vector<StreamSpec> cache_streams(const AttentionSpec& spec, at::ScalarType dtype) {
  spec.check();
  require<UnsupportedError>(spec.mask.causal, "cache",
                            "a cache needs mask.causal: later tokens must not change earlier rows");
  const int64_t earlier = spec.multi_token.earlier_queries();
  const bool windowed = spec.mask.sparsity == MaskRule::Sparsity::full && spec.mask.window > 0;
  StreamSpec keys{.name = stream::kKeys,
                  .row_shape = {spec.kv_heads, spec.head_dim},
                  .dtype = dtype,
                  .by_head = spec.focus.gate != FocusSpec::Gate::hard};
  if (windowed) {
    keys.keep_first = spec.mask.sinks;
    keys.keep_last = spec.mask.window + earlier;  // the oldest query has a window of its own
  }
  StreamSpec values = keys;
  values.name = stream::kValues;
  values.row_shape = {spec.value_heads(), spec.value_width()};
  std::vector<StreamSpec> streams{keys, values};
  if (keeps_prefix_sum(spec.temperature))
    streams.push_back({.name = stream::kTemperature, .row_shape = {1}, .dtype = at::kDouble});
  add_focus_streams(spec.focus, dtype, keys, streams);
  if (spec.routing.active())
    streams.push_back({.name = stream::kRoutes, .row_shape = {spec.heads}, .dtype = at::kLong});
  if (spec.routing.reads_nearness())
    streams.push_back({.name = stream::kNearness,
                       .row_shape = {spec.heads},
                       .dtype = dtype == at::kDouble ? at::kDouble : at::kFloat});
  if (earlier > 0) {
    streams.push_back({.name = stream::kQueries,
                       .row_shape = {spec.heads, spec.head_dim},
                       .dtype = dtype,
                       .keep_last = earlier + 1});
    if (spec.temperature.kind == TemperatureSpec::Kind::learned)
      streams.push_back({.name = stream::kTau,
                         .row_shape = {1},
                         .dtype = dtype == at::kDouble ? at::kDouble : at::kFloat,
                         .keep_last = earlier + 1});
  }
  return streams;
}

int64_t cache_bytes(const std::vector<StreamSpec>& streams, int64_t batch, int64_t capacity) {
  int64_t total = 0;
  for (const StreamSpec& spec : streams) {
    int64_t bytes = static_cast<int64_t>(at::elementSize(spec.dtype));
    for (const int64_t n : rows_shape(spec, batch, resting_rows(spec, capacity))) bytes *= n;
    total += HugePages::padded(bytes);
  }
  return total;
}

}  // namespace fovea
