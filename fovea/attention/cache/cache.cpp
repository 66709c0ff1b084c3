// The cache of one layer.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cache/cache.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "fovea/attention/cache/sorted_keys.h"
#include "fovea/attention/mechanisms/focus.h"
#include "fovea/attention/mechanisms/head_output.h"
#include "fovea/attention/mechanisms/mechanism.h"
#include "fovea/attention/paths/grouped.h"
#include "fovea/base/error.h"
#include "fovea/kernels/cpu/attention.h"

namespace fovea {
namespace {

constexpr const char* kTemperature = "temperature";
constexpr const char* kQueries = "queries";
constexpr const char* kTau = "tau";
constexpr const char* kGroups = "groups";
constexpr const char* kMembers = "members";
constexpr const char* kRoutes = "routes";
constexpr const char* kNearness = "nearness";

std::vector<int64_t> buffer_shape(const StreamSpec& spec, int64_t batch, int64_t rows) {
  std::vector<int64_t> shape{batch, rows};
  shape.insert(shape.end(), spec.row_shape.begin(), spec.row_shape.end());
  return shape;
}

// Zeros of buffer_shape(), in `memory` if given.
at::Tensor make_buffer(const StreamSpec& spec, int64_t batch, int64_t rows, at::Device device,
                       HugePages* memory = nullptr) {
  std::vector<int64_t> shape = buffer_shape(spec, batch, rows);
  if (spec.by_head) std::swap(shape[1], shape[2]);
  const at::Tensor buffer =
      memory != nullptr ? memory->take(shape, spec.dtype).zero_()
                        : at::zeros(shape, at::TensorOptions().dtype(spec.dtype).device(device));
  return spec.by_head ? buffer.transpose(1, 2) : buffer;
}

// Tail rows a stream holds at rest. Twice the kept rows let most appends write in place: rows move
// once in keep_last tokens.
int64_t resting_rows(const StreamSpec& spec, int64_t capacity) {
  return spec.keep_last > 0 ? std::min(capacity, 2 * spec.keep_last) : capacity;
}

}  // namespace

std::vector<StreamSpec> cache_streams(const AttentionSpec& spec, at::ScalarType dtype) {
  spec.check();
  require<UnsupportedError>(spec.mask.causal, "cache",
                            "a cache needs mask.causal: later tokens must not change earlier rows");
  const int64_t earlier = spec.multi_token.earlier_queries();
  const bool windowed = spec.mask.sparsity == MaskRule::Sparsity::full && spec.mask.window > 0;
  StreamSpec keys{.name = "keys",
                  .row_shape = {spec.kv_heads, spec.head_dim},
                  .dtype = dtype,
                  .by_head = spec.focus.gate != FocusSpec::Gate::hard};
  if (windowed) {
    keys.keep_first = spec.mask.sinks;
    keys.keep_last = spec.mask.window + earlier;  // the oldest query has a window of its own
  }
  StreamSpec values = keys;
  values.name = "values";
  values.row_shape = {spec.value_heads(), spec.value_width()};
  std::vector<StreamSpec> streams{keys, values};
  add_mechanism_streams(spec, keys, streams);
  return streams;
}

int64_t cache_bytes(const std::vector<StreamSpec>& streams, int64_t batch, int64_t capacity) {
  int64_t total = 0;
  for (const StreamSpec& spec : streams) {
    int64_t bytes = static_cast<int64_t>(at::elementSize(spec.dtype));
    for (const int64_t n : buffer_shape(spec, batch, resting_rows(spec, capacity))) bytes *= n;
    total += HugePages::padded(bytes);
  }
  return total;
}

int64_t AttentionCache::Stream::first_rows() const { return std::min(seen, spec.keep_first); }

int64_t AttentionCache::Stream::visible_begin() const {
  if (spec.keep_last == 0) return tail_begin;
  return std::max(tail_begin, seen - last_appended - spec.keep_last + 1);
}

AttentionCache::AttentionCache(std::vector<StreamSpec> streams, int64_t batch, int64_t capacity,
                               at::Device device, HugePages* memory)
    : batch_(batch), capacity_(capacity), device_(device) {
  require<ConfigError>(batch >= 1 && capacity >= 1, "cache",
                       "batch and capacity must be at least 1; got {} and {}", batch, capacity);
  for (StreamSpec& spec : streams) {
    Stream stream;
    stream.first = make_buffer(spec, batch, spec.keep_first, device);
    stream.tail = make_buffer(spec, batch, resting_rows(spec, capacity), device, memory);
    stream.tail_begin = spec.keep_first;
    stream.spec = std::move(spec);
    streams_.push_back(std::move(stream));
  }
}

AttentionCache::Stream& AttentionCache::stream(const std::string& name) {
  const auto found = std::ranges::find(streams_, name, [](const Stream& s) { return s.spec.name; });
  require<ConfigError>(found != streams_.end(), "cache",
                       "this cache has no stream '{}'; it was made for another attention", name);
  return *found;
}

const AttentionCache::Stream& AttentionCache::stream(const std::string& name) const {
  return const_cast<AttentionCache*>(this)->stream(name);
}

bool AttentionCache::has(const std::string& name) const {
  return std::ranges::any_of(streams_, [&](const Stream& s) { return s.spec.name == name; });
}

void AttentionCache::require_room(const Stream& s, int64_t rows) const {
  require<UnsupportedError>(
      s.seen + rows <= capacity_, "cache",
      "the sequence must fit into {} tokens; got {} + {}; make the cache with more capacity",
      capacity_, s.seen, rows);
}

// Evicts what no query from position `seen` on can see, and grows the buffer where one append alone
// exceeds it.
void AttentionCache::make_room(Stream& s, int64_t rows) {
  const int64_t used = std::max<int64_t>(0, s.seen - s.tail_begin);
  if (used + rows <= s.tail.size(1)) return;
  const int64_t begin =
      s.spec.keep_last > 0 ? std::max(s.tail_begin, s.seen - s.spec.keep_last + 1) : s.tail_begin;
  const int64_t kept = std::max<int64_t>(0, s.seen - begin);
  const int64_t size = std::max(kept + rows, resting_rows(s.spec, capacity_));
  at::Tensor tail = make_buffer(s.spec, batch_, size, device_);
  if (kept > 0) tail.narrow(1, 0, kept).copy_(s.tail.narrow(1, begin - s.tail_begin, kept));
  s.tail = std::move(tail);
  s.tail_begin = begin;
}

void AttentionCache::append(const std::string& name, const at::Tensor& rows_bn) {
  const at::NoGradGuard no_gradient;
  Stream& s = stream(name);
  const int64_t n = rows_bn.dim() >= 2 ? rows_bn.size(1) : -1;
  require<ShapeError>(n >= 0 && rows_bn.sizes() == at::IntArrayRef(buffer_shape(s.spec, batch_, n)),
                      "cache", "rows of stream '{}' must be [{}, n, {}]; got [{}]", name, batch_,
                      fmt::join(s.spec.row_shape, ", "), fmt::join(rows_bn.sizes(), ", "));
  require_room(s, n);
  const int64_t to_first = std::clamp<int64_t>(s.spec.keep_first - s.seen, 0, n);
  if (to_first > 0) s.first.narrow(1, s.seen, to_first).copy_(rows_bn.narrow(1, 0, to_first));
  if (n > to_first) {
    make_room(s, n - to_first);
    const int64_t offset = std::max<int64_t>(0, s.seen - s.tail_begin);
    s.tail.narrow(1, offset, n - to_first).copy_(rows_bn.narrow(1, to_first, n - to_first));
  }
  s.seen += n;
  s.last_appended = n;
}

CachedRows AttentionCache::extend(const std::string& name) {
  Stream& s = stream(name);
  require<UnsupportedError>(s.spec.keep_first == 0, "cache",
                            "stream '{}' keeps first rows apart; use append()", name);
  require_room(s, 1);
  make_room(s, 1);
  s.seen += 1;
  s.last_appended = 1;
  const int64_t begin = s.visible_begin(), row = s.tail.stride(1);
  return {.data = static_cast<char*>(s.tail.data_ptr()) +
                  (begin - s.tail_begin) * row * static_cast<int64_t>(s.tail.element_size()),
          .batch = s.tail.stride(0),
          .row = row,
          .head = s.tail.dim() == 4 ? s.tail.stride(2) : 0,
          .rows = s.seen - begin,
          .first_position = begin};
}

at::Tensor AttentionCache::rows(const std::string& name) const {
  const Stream& s = stream(name);
  const int64_t begin = s.visible_begin();
  const at::Tensor tail = s.seen > begin ? s.tail.narrow(1, begin - s.tail_begin, s.seen - begin)
                                         : s.tail.narrow(1, 0, 0);
  return s.spec.keep_first > 0 ? at::cat({s.first.narrow(1, 0, s.first_rows()), tail}, 1) : tail;
}

at::Tensor AttentionCache::positions(const std::string& name) const {
  const Stream& s = stream(name);
  const auto options = at::TensorOptions().dtype(at::kLong).device(device_);
  const at::Tensor tail = at::arange(std::min(s.visible_begin(), s.seen), s.seen, options);
  return s.spec.keep_first > 0 ? at::cat({at::arange(s.first_rows(), options), tail}) : tail;
}

int64_t AttentionCache::length() const {
  int64_t least = streams_.empty() ? 0 : streams_.front().seen;
  for (const Stream& s : streams_) least = std::min(least, s.seen);
  return least;
}

int64_t AttentionCache::stream_length(const std::string& name) const { return stream(name).seen; }

int64_t AttentionCache::capacity() const { return capacity_; }

void AttentionCache::truncate(int64_t length) {
  for (const Stream& s : streams_) {
    require<UnsupportedError>(length >= 0 && length <= s.seen, "cache",
                              "can only forget tokens it has; asked to keep {} of {}", length,
                              s.seen);
    const int64_t needed = std::max(s.spec.keep_first, length - s.spec.keep_last + 1);
    require<UnsupportedError>(s.spec.keep_last == 0 || s.tail_begin <= needed, "cache",
                              "cannot go back to {} tokens: rows before {} of stream '{}' were "
                              "evicted; keep a fork instead",
                              length, s.tail_begin, s.spec.name);
  }
  for (Stream& s : streams_) {
    s.seen = length;
    s.last_appended = 0;
  }
  if (sorted_) sorted_->truncate(length);
  sorting_from_ = 0;
}

AttentionCache AttentionCache::fork() const {
  AttentionCache copy = *this;
  for (Stream& s : copy.streams_) {
    s.first = s.first.clone();
    s.tail = s.tail.clone();
  }
  if (sorted_) copy.sorted_ = std::make_shared<SortedKeys>(sorted_->clone());
  return copy;
}

std::map<std::string, at::Tensor> AttentionCache::save() const {
  std::map<std::string, at::Tensor> tensors;
  for (const Stream& s : streams_) {
    const std::string key = "stream." + s.spec.name;
    tensors[key + ".first"] = s.first.narrow(1, 0, s.first_rows()).clone();
    tensors[key + ".tail"] =
        s.tail.narrow(1, 0, std::max<int64_t>(0, s.seen - s.tail_begin)).clone();
    tensors[key + ".state"] = at::tensor({s.seen, s.tail_begin, s.last_appended}, at::kLong);
  }
  return tensors;
}

void AttentionCache::load(const std::map<std::string, at::Tensor>& tensors) {
  AttentionCache loaded = *this;
  for (Stream& s : loaded.streams_) {
    const std::string key = "stream." + s.spec.name;
    for (const char* part : {".first", ".tail", ".state"}) {
      require<CheckpointError>(tensors.contains(key + part), "cache",
                               "the saved cache lacks tensor '{}{}'", key, part);
    }
    const at::Tensor &first = tensors.at(key + ".first"), &tail = tensors.at(key + ".tail"),
                     &state = tensors.at(key + ".state");
    require<CheckpointError>(state.numel() == 3 && state.scalar_type() == at::kLong, "cache",
                             "'{}.state' must be three int64", key);
    s.seen = state[0].item<int64_t>();
    s.tail_begin = state[1].item<int64_t>();
    s.last_appended = state[2].item<int64_t>();
    const int64_t rows = std::max<int64_t>(0, s.seen - s.tail_begin);
    require<CheckpointError>(
        s.seen >= 0 && s.seen <= capacity_ && s.tail_begin >= s.spec.keep_first &&
            first.sizes() == at::IntArrayRef(buffer_shape(s.spec, batch_, s.first_rows())) &&
            tail.sizes() == at::IntArrayRef(buffer_shape(s.spec, batch_, rows)),
        "cache", "stream '{}' was saved by a cache of other sizes", s.spec.name);
    s.first = at::zeros_like(s.first);
    s.first.narrow(1, 0, first.size(1)).copy_(first);
    s.tail = make_buffer(s.spec, batch_, std::max(rows, resting_rows(s.spec, capacity_)), device_);
    s.tail.narrow(1, 0, rows).copy_(tail);
  }
  loaded.sorted_ = nullptr;
  loaded.sorting_from_ = 0;
  *this = std::move(loaded);
}

int64_t AttentionCache::bytes() const {
  int64_t total = sorted_ ? sorted_->bytes() : 0;
  for (const Stream& s : streams_)
    total += static_cast<int64_t>(s.first.nbytes() + s.tail.nbytes());
  return total;
}

bool AttentionCache::wants_sorted_keys(const FocusSpec& focus) {
  constexpr int64_t kQueriesBefore = 32;  // sorting takes about as long as it saves in these
  if (stream_length("keys") < SortedKeys::kLeastKeys ||
      focus_is_neutral(focus, {}, stream_length("keys")))
    return false;
  if (++single_queries_ <= kQueriesBefore) return false;
  if (sorted_ && !sorted_->pays()) sorted_ = nullptr;
  const int64_t length = stream_length("keys");
  if (sorted_ || length < sorting_from_) return sorted_ != nullptr;
  if (SortedKeys::pays(rows(kMembers).squeeze(-1))) return true;
  sorting_from_ = 2 * length;  // looked at again then
  return false;
}

SortedKeys& AttentionCache::sorted_keys(int64_t window) {
  if (!sorted_) sorted_ = std::make_shared<SortedKeys>(window);
  const int64_t from = sorted_->length(), count = stream_length("keys") - from;
  if (count > 0) {
    const auto fresh = [&](const char* name) { return rows(name).narrow(1, from, count); };
    sorted_->append(fresh("keys").transpose(1, 2), fresh("values").transpose(1, 2),
                    fresh(kMembers).squeeze(-1));
  }
  return *sorted_;
}

SortedKeys* AttentionCache::sorted_for_token(const AttentionSpec& spec) {
  if (!wants_sorted_keys(spec.focus)) return nullptr;
  SortedKeys& sorted = sorted_keys(spec.focus.window);
  sorted.make_room_for_token();
  return &sorted;
}

TemperatureState AttentionCache::temperature() const {
  const Stream& s = stream(kTemperature);
  const auto options = s.tail.options();
  return {.sum_b = s.seen > 0 ? s.tail.select(1, s.seen - 1).select(1, 0).clone()
                              : at::zeros({batch_}, options),
          .count_b = at::full({batch_}, s.seen, options.dtype(at::kLong))};
}

at::Tensor cached_temperature(const TemperatureSpec& spec, int64_t head_dim,
                              const TemperatureParameters& parameters, const at::Tensor& x_btc,
                              AttentionCache& cache) {
  const at::NoGradGuard no_gradient;
  if (spec.kind != TemperatureSpec::Kind::learned || spec.form != TemperatureSpec::Form::prefix) {
    require<UnsupportedError>(spec.form != TemperatureSpec::Form::sequence, "cache",
                              "temperature.form sequence needs the whole text and has no decode "
                              "(F-1, F-12); train with form prefix");
    return temperature_rows(spec, head_dim, parameters, x_btc, {}).tau_bt;
  }
  TemperatureState state = cache.temperature();
  const TemperatureRows rows = temperature_rows(spec, head_dim, parameters, x_btc, {}, &state);
  cache.append(kTemperature, rows.sums_bt.unsqueeze(-1));
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

CachedCall cached_call(const AttentionSpec& spec, const AttentionCache& cache, int64_t queries) {
  CachedCall call{.keys_bgsd = cache.rows("keys").transpose(1, 2),
                  .values_bgse = cache.rows("values").transpose(1, 2)};
  if (cache.has(kGroups)) call.groups_bsk = cache.rows(kGroups);
  if (cache.has(kMembers)) call.members_bs = cache.rows(kMembers).squeeze(-1);
  const int64_t rows = call.keys_bgsd.size(2);
  // Where nothing was evicted the default places are right, and cheaper: the queries are the last
  // of the keys.
  if (rows == cache.stream_length("keys")) return call;
  call.context.key_positions_bs = cache.positions("keys");
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

}  // namespace

AttentionResult cached_attention(const AttentionSpec& spec, AttentionCache& cache,
                                 const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const AttentionTensors& tensors, Path path) {
  const at::NoGradGuard no_gradient;
  require<UnsupportedError>(spec.mask.causal, "cache",
                            "a cache needs mask.causal: later tokens must not change earlier rows");
  require<ShapeError>(q.dim() == 4 && k.dim() == 4 && q.size(2) == k.size(2), "cache",
                      "q and k of the new tokens must be [b, heads, t, d] with one t");
  cache.append("keys", k.transpose(1, 2));
  cache.append("values", v.transpose(1, 2));
  const int64_t t = q.size(2);
  at::Tensor queries = q;
  AttentionTensors inputs = tensors;
  if (cache.has(kQueries)) {
    cache.append(kQueries, q.transpose(1, 2));
    queries = cache.rows(kQueries).transpose(1, 2);
  }
  if (cache.has(kTau)) {
    cache.append(kTau, tensors.tau_bt.unsqueeze(-1));
    inputs.tau_bt = cache.rows(kTau).squeeze(-1);
  }
  if (cache.has(kGroups)) cache.append(kGroups, tensors.groups_bsk);
  if (cache.has(kMembers)) cache.append(kMembers, tensors.members_bs.unsqueeze(-1));
  for (const auto& [name, x] :
       {std::pair{kRoutes, &inputs.key_routes_bhs}, {kNearness, &inputs.key_nearness_bhs}}) {
    if (!cache.has(name)) continue;
    cache.append(name, x->transpose(1, 2));
    *x = cache.rows(name).transpose(1, 2);
  }
  std::optional<AttentionResult> sorted;
  if (path != Path::reference && can_read_sorted_keys(spec, q) &&
      cache.wants_sorted_keys(spec.focus)) {
    sorted = cache.sorted_keys(spec.focus.window).attend(spec, q, inputs, {});
    if (sorted) sorted->out_bhte = head_output(spec, sorted->out_bhte, inputs);
  }
  const CachedCall call = cached_call(spec, cache, queries.size(2));
  inputs.groups_bsk = call.groups_bsk;
  inputs.members_bs = call.members_bs;
  AttentionResult result = sorted ? std::move(*sorted)
                                  : attention(spec, queries, call.keys_bgsd, call.values_bgse,
                                              inputs, call.context, path);
  // The earlier queries were there for the convolutions alone.
  const int64_t earlier = queries.size(2) - t;
  if (earlier > 0) {
    result.out_bhte = result.out_bhte.narrow(2, earlier, t);
    if (result.lse_bht.defined()) result.lse_bht = result.lse_bht.narrow(2, earlier, t);
  }
  result.path.inner = result.path.name;
  result.path.name = PathName::decode;
  return result;
}

}  // namespace fovea
