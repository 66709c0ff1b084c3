// The cache of one layer.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cache/cache.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "fovea/base/error.h"

namespace fovea {
namespace {

// Zeros of rows_shape(), in `memory` if given.
at::Tensor make_buffer(const StreamSpec& spec, int64_t batch, int64_t rows, at::Device device,
                       HugePages* memory = nullptr) {
  std::vector<int64_t> shape = rows_shape(spec, batch, rows);
  if (spec.by_head) std::swap(shape[1], shape[2]);
  const at::Tensor buffer =
      memory != nullptr ? memory->allocate(shape, spec.dtype).zero_()
      : device.is_cpu() ? HugePages::zeros(shape, spec.dtype)
                        : at::zeros(shape, at::TensorOptions().dtype(spec.dtype).device(device));
  return spec.by_head ? buffer.transpose(1, 2) : buffer;
}

}  // namespace

bool AttentionCache::Stream::equal() const {
  return std::ranges::all_of(places, [&](const Place& p) { return p == places.front(); });
}

bool AttentionCache::Stream::begins_shared() const {
  return std::ranges::any_of(shared, [](const auto& rows) { return !rows.empty(); });
}

int64_t AttentionCache::Stream::first_rows(int64_t b) const {
  return std::min(places[b].seen, spec.keep_first);
}

int64_t AttentionCache::Stream::visible_begin(int64_t b) const {
  const Place& p = places[b];
  if (spec.keep_last == 0) return spec.state ? p.tail_begin : 0;
  return std::max(p.tail_begin, p.seen - p.last_appended - spec.keep_last + 1);
}

// No query from position `seen` on can see what is before.
int64_t AttentionCache::Stream::kept_begin(int64_t b) const {
  const Place& p = places[b];
  return spec.keep_last > 0 ? std::max(p.tail_begin, p.seen - spec.keep_last + 1) : p.tail_begin;
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
    stream.places.resize(static_cast<size_t>(batch), {.tail_begin = spec.keep_first});
    stream.shared.resize(static_cast<size_t>(batch));
    stream.spec = std::move(spec);
    streams_.push_back(std::move(stream));
  }
}

AttentionCache AttentionCache::gather(std::span<const Source> sources, int64_t capacity) {
  require<ConfigError>(!sources.empty(), "cache", "expected at least one sequence; got none");
  const AttentionCache& like = *sources.front().cache;
  std::vector<StreamSpec> specs;
  for (const Stream& s : like.streams_) specs.push_back(s.spec);
  for (const Source& source : sources) {
    const auto same = [](const Stream& s, const StreamSpec& spec) { return s.spec == spec; };
    require<ConfigError>(std::ranges::equal(source.cache->streams_, specs, same), "cache",
                         "caches of other attention have no common batch");
    for (const Stream& s : source.cache->streams_)
      require<UnsupportedError>(s.places[source.sequence].seen <= capacity, "cache",
                                "the sequence must fit into {} tokens; got {}", capacity,
                                s.places[source.sequence].seen);
  }
  AttentionCache joined;
  joined.batch_ = std::ssize(sources);
  joined.capacity_ = capacity;
  joined.device_ = like.device_;
  for (size_t n = 0; n < specs.size(); ++n) {
    Stream& to = joined.streams_.emplace_back();
    to.spec = specs[n];
    to.shared.resize(sources.size());
    to.places.resize(sources.size());
    to.first = make_buffer(to.spec, joined.batch_, to.spec.keep_first, like.device_);
    if (to.keeps_all()) {
      std::vector<Origin> origins;
      for (const Source& source : sources)
        origins.push_back({&source.cache->streams_[n], source.sequence});
      joined.share(to, origins);
      continue;
    }
    to.tail = make_buffer(to.spec, joined.batch_, resting_rows(to.spec, capacity), like.device_);
    for (int64_t b = 0; b < joined.batch_; ++b) {
      const Source& source = sources[b];
      const Stream& from = source.cache->streams_[n];
      Place& place = to.places[b] = from.places[source.sequence];
      const int64_t begin = from.kept_begin(source.sequence) - place.tail_begin;
      place.tail_begin += begin;
      const auto row = [](const at::Tensor& x, int64_t sequence, int64_t first, int64_t rows) {
        return x.narrow(0, sequence, 1).narrow(1, first, rows);
      };
      if (const int64_t rows = to.first_rows(b); rows > 0)
        row(to.first, b, 0, rows).copy_(row(from.first, source.sequence, 0, rows));
      if (const int64_t rows = place.used(); rows > 0)
        row(to.tail, b, 0, rows).copy_(row(from.tail, source.sequence, begin, rows));
    }
  }
  return joined;
}

void AttentionCache::share(Stream& to, std::span<const Origin> origins) const {
  int64_t least = capacity_;
  for (size_t b = 0; b < origins.size(); ++b) {
    const auto& [from, sequence] = origins[b];
    const Place& of = from->places[sequence];
    const int64_t whole = std::max(of.seen / kPage * kPage, of.tail_begin);
    to.shared[b] = from->shared[sequence];
    if (whole > of.tail_begin)
      to.shared[b].push_back(
          {.rows = from->tail, .sequence = sequence, .begin = of.tail_begin, .end = whole});
    to.places[b] = {.seen = of.seen,
                    .tail_begin = whole,
                    .last_appended = of.last_appended,
                    .written = of.seen};
    least = std::min(least, whole);
  }
  to.tail =
      make_buffer(to.spec, std::ssize(origins), std::max<int64_t>(capacity_ - least, 1), device_);
  for (size_t b = 0; b < origins.size(); ++b) {
    const auto& [from, sequence] = origins[b];
    const Place& place = to.places[b];
    if (place.used() == 0) continue;
    const int64_t begin = place.tail_begin - from->places[sequence].tail_begin;
    to.tail.select(0, static_cast<int64_t>(b))
        .narrow(0, 0, place.used())
        .copy_(from->tail.select(0, sequence).narrow(0, begin, place.used()));
  }
}

at::Tensor AttentionCache::gathered(const Stream& s, Sequences which, int64_t rows) const {
  const at::Tensor all = make_buffer(s.spec, which.count, rows, device_);
  for (int64_t n = 0; n < which.count; ++n) {
    const int64_t b = which.begin + n;
    const Place& p = s.places[b];
    const at::Tensor to = all.select(0, n);
    for (const SharedRows& pages : s.shared[b])
      to.narrow(0, pages.begin, pages.end - pages.begin)
          .copy_(pages.rows.select(0, pages.sequence).narrow(0, 0, pages.end - pages.begin));
    if (p.used() > 0)
      to.narrow(0, p.tail_begin, p.used()).copy_(s.tail.select(0, b).narrow(0, 0, p.used()));
  }
  return all;
}

void AttentionCache::make_own(Stream& s) const {
  if (!s.begins_shared()) return;
  s.tail = gathered(s, {.begin = 0, .count = batch_}, capacity_);
  s.shared.assign(s.places.size(), {});
  for (Place& p : s.places) p = {p.seen, 0, p.last_appended, p.seen};
}

void AttentionCache::leave_to_others(Stream& s) {
  const auto again = [](const Place& p) { return p.seen < p.written; };
  if (s.tail.use_count() == 1 || !std::ranges::any_of(s.places, again)) return;
  s.tail = s.tail.clone();
  for (Place& p : s.places) p.written = p.seen;
}

AttentionCache::Stream& AttentionCache::stream(std::string_view name) {
  const auto found =
      std::ranges::find_if(streams_, [name](const Stream& s) { return s.spec.name == name; });
  require<ConfigError>(found != streams_.end(), "cache",
                       "this cache has no stream '{}'; it was made for another attention", name);
  return *found;
}

const AttentionCache::Stream& AttentionCache::stream(std::string_view name) const {
  return const_cast<AttentionCache*>(this)->stream(name);
}

bool AttentionCache::has(std::string_view name) const {
  return std::ranges::any_of(streams_, [&](const Stream& s) { return s.spec.name == name; });
}

// All sequences where their places are the same, else each alone.
c10::SmallVector<AttentionCache::Sequences, 2> AttentionCache::runs(const Stream& s) const {
  if (s.equal()) return {{.begin = 0, .count = batch_}};
  c10::SmallVector<Sequences, 2> all;
  for (int64_t b = 0; b < batch_; ++b) all.push_back({.begin = b, .count = 1});
  return all;
}

void AttentionCache::require_room(const Stream& s, int64_t rows) const {
  for (const Place& p : s.places) {
    require<UnsupportedError>(
        p.seen + rows <= capacity_, "cache",
        "the sequence must fit into {} tokens; got {} + {}; make the cache with more capacity",
        capacity_, p.seen, rows);
  }
}

// Evicts what no later query can see, and grows the buffer where one append alone exceeds it.
void AttentionCache::make_room(Stream& s, Sequences which, int64_t rows) {
  const Place& p = s.places[which.begin];
  if (p.used() + rows <= s.tail.size(1)) return;
  const int64_t begin = s.kept_begin(which.begin), from = begin - p.tail_begin;
  const int64_t kept = std::max<int64_t>(0, p.seen - begin);
  int64_t size = std::max(kept + rows, resting_rows(s.spec, capacity_));
  const bool all = which.count == batch_;
  if (!all) size = std::max(size, s.tail.size(1));
  at::Tensor tail = make_buffer(s.spec, batch_, size, device_);
  if (!all) tail.narrow(1, 0, s.tail.size(1)).copy_(s.tail);
  const auto part = [&](const at::Tensor& x, int64_t first) {
    return x.narrow(0, which.begin, which.count).narrow(1, first, kept);
  };
  if (kept > 0) part(tail, 0).copy_(part(s.tail, from));
  s.tail = std::move(tail);
  for (int64_t b = which.begin; b < which.begin + which.count; ++b) s.places[b].tail_begin = begin;
}

void AttentionCache::append(std::string_view name, const at::Tensor& rows_bn) {
  const at::NoGradGuard no_gradient;
  Stream& s = stream(name);
  const int64_t n = rows_bn.dim() >= 2 ? rows_bn.size(1) : -1;
  require<ShapeError>(n >= 0 && rows_bn.sizes() == at::IntArrayRef(rows_shape(s.spec, batch_, n)),
                      "cache", "rows of stream '{}' must be [{}, n, {}]; got [{}]", name, batch_,
                      fmt::join(s.spec.row_shape, ", "), fmt::join(rows_bn.sizes(), ", "));
  require_room(s, n);
  if (n == 1) make_own(s);  // token by token, tensors of all rows are views again
  leave_to_others(s);
  for (const Sequences& which : runs(s)) {
    const Place& p = s.places[which.begin];
    const auto of = [&](const at::Tensor& x) { return x.narrow(0, which.begin, which.count); };
    const int64_t to_first = std::clamp<int64_t>(s.spec.keep_first - p.seen, 0, n);
    if (to_first > 0)
      of(s.first).narrow(1, p.seen, to_first).copy_(of(rows_bn).narrow(1, 0, to_first));
    if (n > to_first) {
      make_room(s, which, n - to_first);
      of(s.tail)
          .narrow(1, p.used(), n - to_first)
          .copy_(of(rows_bn).narrow(1, to_first, n - to_first));
    }
  }
  for (Place& p : s.places) {
    p.seen += n;
    p.last_appended = n;
    p.written = std::max(p.written, p.seen);
  }
}

CachedRows AttentionCache::extend(std::string_view name) {
  Stream& s = stream(name);
  require_room(s, 1);
  make_own(s);
  return extend_in_pages(name);
}

CachedRows AttentionCache::extend_in_pages(std::string_view name) {
  Stream& s = stream(name);
  require_room(s, 1);
  leave_to_others(s);
  for (const Sequences& which : runs(s))
    if (s.places[which.begin].seen >= s.spec.keep_first) make_room(s, which, 1);
  s.kept.resize(s.places.size());
  for (int64_t b = 0; b < batch_; ++b) {
    Place& p = s.places[b];
    p.seen += 1;
    p.last_appended = 1;
    p.written = std::max(p.written, p.seen);
    const int64_t begin = s.visible_begin(b);
    s.kept[b] = {.begin = begin - p.tail_begin,
                 .rows = std::max<int64_t>(0, p.seen - begin),
                 .first_position = begin,
                 .first_rows = s.first_rows(b)};
  }
  const auto buffer = [](const at::Tensor& x) {
    return CachedRows::Buffer{.data = x.data_ptr(),
                              .batch = x.stride(0),
                              .row = x.stride(1),
                              .head = x.dim() == 4 ? x.stride(2) : 0};
  };
  const CachedRows::Buffer tail = buffer(s.tail);
  return {.data = tail.data,
          .batch = tail.batch,
          .row = tail.row,
          .head = tail.head,
          .first = s.spec.keep_first > 0 ? buffer(s.first) : CachedRows::Buffer{},
          .sequences = s.kept,
          .shared = s.begins_shared() ? s.shared : std::span<const std::vector<SharedRows>>()};
}

at::Tensor AttentionCache::replace(std::string_view name, int64_t tokens) {
  Stream& s = stream(name);
  require<ConfigError>(s.spec.state, "cache", "stream '{}' has a row a token; use append()", name);
  require_room(s, tokens);
  for (int64_t b = 0; b < batch_; ++b) {
    Place& p = s.places[b];
    if (p.seen == 0) s.tail.select(0, b).zero_();
    p.seen += tokens;
    p.tail_begin = std::max<int64_t>(0, p.seen - 1);
    p.last_appended = tokens;
  }
  return s.tail.select(1, 0);
}

at::Tensor AttentionCache::rows_of(const Stream& s, Sequences which) const {
  const auto of = [&](const at::Tensor& x) { return x.narrow(0, which.begin, which.count); };
  const Place& p = s.places[which.begin];
  if (s.begins_shared()) return gathered(s, which, p.seen);
  const int64_t begin = s.visible_begin(which.begin);
  const at::Tensor tail = p.seen > begin
                              ? of(s.tail).narrow(1, begin - p.tail_begin, p.seen - begin)
                              : of(s.tail).narrow(1, 0, 0);
  return s.spec.keep_first > 0
             ? at::cat({of(s.first).narrow(1, 0, s.first_rows(which.begin)), tail}, 1)
             : tail;
}

at::Tensor AttentionCache::rows(std::string_view name) const {
  const Stream& s = stream(name);
  require<ShapeError>(s.equal(), "cache",
                      "the sequences of stream '{}' have unequal lengths; ask for one of them",
                      name);
  return rows_of(s, {.begin = 0, .count = batch_});
}

at::Tensor AttentionCache::rows(std::string_view name, int64_t sequence) const {
  return rows_of(stream(name), {.begin = sequence, .count = 1});
}

at::Tensor AttentionCache::positions(std::string_view name) const {
  require<ShapeError>(stream(name).equal(), "cache",
                      "the sequences of stream '{}' have unequal lengths; ask for one of them",
                      name);
  return positions(name, 0, device_);
}

at::Tensor AttentionCache::positions(std::string_view name, int64_t sequence,
                                     at::Device where) const {
  const Stream& s = stream(name);
  const Place& p = s.places[sequence];
  const auto options = at::TensorOptions().dtype(at::kLong).device(where);
  const at::Tensor tail = at::arange(std::min(s.visible_begin(sequence), p.seen), p.seen, options);
  return s.spec.keep_first > 0 ? at::cat({at::arange(s.first_rows(sequence), options), tail})
                               : tail;
}

std::vector<int64_t> AttentionCache::lengths() const {
  std::vector<int64_t> least(static_cast<size_t>(batch_), 0);
  for (size_t n = 0; n < streams_.size(); ++n) {
    for (int64_t b = 0; b < batch_; ++b) {
      const int64_t seen = streams_[n].places[b].seen;
      least[b] = n == 0 ? seen : std::min(least[b], seen);
    }
  }
  return least;
}

bool AttentionCache::equal_lengths() const {
  return std::ranges::all_of(streams_, [](const Stream& s) { return s.equal(); });
}

int64_t AttentionCache::length() const { return std::ranges::max(lengths()); }

int64_t AttentionCache::stream_length(std::string_view name) const {
  return std::ranges::max(stream(name).places, {}, &Place::seen).seen;
}

int64_t AttentionCache::stream_length(std::string_view name, int64_t sequence) const {
  return stream(name).places[sequence].seen;
}

void AttentionCache::truncate(int64_t length) {
  truncate(std::vector<int64_t>(static_cast<size_t>(batch_), length));
}

void AttentionCache::truncate(std::span<const int64_t> lengths) {
  require<ShapeError>(std::ssize(lengths) == batch_, "cache",
                      "expected the lengths of {} sequences; got {}", batch_, lengths.size());
  for (const Stream& s : streams_) {
    for (int64_t b = 0; b < batch_; ++b) {
      const Place& p = s.places[b];
      const int64_t length = lengths[b];
      require<UnsupportedError>(length >= 0 && length <= p.seen, "cache",
                                "can only forget tokens it has; asked to keep {} of {}", length,
                                p.seen);
      const int64_t needed = std::max(s.spec.keep_first, length - s.spec.keep_last + 1);
      require<UnsupportedError>(s.spec.keep_last == 0 || p.tail_begin <= needed, "cache",
                                "cannot go back to {} tokens: rows before {} of stream '{}' were "
                                "evicted; keep a fork instead",
                                length, p.tail_begin, s.spec.name);
    }
  }
  for (Stream& s : streams_) {
    for (int64_t b = 0; b < batch_; ++b)
      if (s.keeps_all() && lengths[b] < s.places[b].tail_begin) make_own(s);
    for (int64_t b = 0; b < batch_; ++b) {
      s.places[b].seen = lengths[b];
      s.places[b].last_appended = 0;
    }
  }
}

AttentionCache AttentionCache::fork() const {
  AttentionCache copy = *this;
  for (size_t n = 0; n < streams_.size(); ++n) {
    Stream& s = copy.streams_[n];
    s.first = s.first.clone();
    if (!s.keeps_all()) {
      s.tail = s.tail.clone();
      continue;
    }
    std::vector<Origin> origins;
    for (int64_t b = 0; b < batch_; ++b) origins.push_back({&streams_[n], b});
    copy.share(s, origins);
  }
  return copy;
}

std::map<std::string, at::Tensor> AttentionCache::save() const {
  std::map<std::string, at::Tensor> tensors;
  AttentionCache whole = *this;
  for (Stream& s : whole.streams_) {
    make_own(s);
    const std::string key = "stream." + s.spec.name;
    int64_t first = 0, tail = 0;
    at::Tensor state = at::empty({batch_, 3}, at::kLong);
    for (int64_t b = 0; b < batch_; ++b) {
      const Place& p = s.places[b];
      first = std::max(first, s.first_rows(b));
      tail = std::max(tail, p.used());
      const std::array<int64_t, 3> numbers{p.seen, p.tail_begin, p.last_appended};
      std::ranges::copy(numbers, state.mutable_data_ptr<int64_t>() + 3 * b);
    }
    tensors[key + ".first"] = s.first.narrow(1, 0, first).clone();
    tensors[key + ".tail"] = s.tail.narrow(1, 0, tail).clone();
    tensors[key + ".state"] = state;
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
    const at::Tensor &first = tensors.at(key + ".first"), &tail = tensors.at(key + ".tail");
    const at::Tensor state = tensors.at(key + ".state").cpu().contiguous();
    require<CheckpointError>(state.numel() == 3 * batch_ && state.scalar_type() == at::kLong,
                             "cache", "'{}.state' must be three int64 a sequence", key);
    int64_t first_rows = 0, rows = 0;
    for (int64_t b = 0; b < batch_; ++b) {
      const int64_t* const numbers = state.const_data_ptr<int64_t>() + 3 * b;
      Place& p = s.places[b] = {.seen = numbers[0],
                                .tail_begin = numbers[1],
                                .last_appended = numbers[2],
                                .written = numbers[0]};
      require<CheckpointError>(
          p.seen >= 0 && p.seen <= capacity_ && p.tail_begin >= s.spec.keep_first, "cache",
          "stream '{}' was saved by a cache of other sizes", s.spec.name);
      first_rows = std::max(first_rows, s.first_rows(b));
      rows = std::max(rows, p.used());
    }
    require<CheckpointError>(
        first.sizes() == at::IntArrayRef(rows_shape(s.spec, batch_, first_rows)) &&
            tail.sizes() == at::IntArrayRef(rows_shape(s.spec, batch_, rows)),
        "cache", "stream '{}' was saved by a cache of other sizes", s.spec.name);
    s.shared.assign(s.places.size(), {});
    s.first = at::zeros_like(s.first);
    s.first.narrow(1, 0, first.size(1)).copy_(first);
    s.tail = make_buffer(s.spec, batch_, std::max(rows, resting_rows(s.spec, capacity_)), device_);
    s.tail.narrow(1, 0, rows).copy_(tail);
  }
  *this = std::move(loaded);
}

int64_t AttentionCache::bytes() const {
  int64_t total = 0;
  for (const Stream& s : streams_)
    total += static_cast<int64_t>(s.first.nbytes() + s.tail.nbytes());
  return total;
}

}  // namespace fovea
