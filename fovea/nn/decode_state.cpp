// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/decode_state.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "fovea/base/error.h"

namespace fovea {

bool same_rotation(const RopeTable& a, const RopeTable& b) {
  if (!a.cos_pf.defined() || !b.cos_pf.defined()) return a.cos_pf.defined() == b.cos_pf.defined();
  if (a.cos_pf.data_ptr() == b.cos_pf.data_ptr()) return true;
  const int64_t rows = std::min(a.cos_pf.size(0), b.cos_pf.size(0));
  const auto same = [rows](const at::Tensor& x, const at::Tensor& y) {
    return at::equal(x.narrow(0, 0, rows), y.narrow(0, 0, rows));
  };
  return same(a.cos_pf, b.cos_pf) && same(a.sin_pf, b.sin_pf);
}

namespace {

struct Place {
  const DecodeState* state = nullptr;
  int64_t sequence = 0;
};

// `capacity` 0: the largest of theirs.
DecodeState gather(std::span<const Place> places, int64_t capacity = 0) {
  require<ConfigError>(!places.empty(), "decode", "expected at least one sequence; got none");
  DecodeState joined;
  int64_t largest = 0;
  for (const Place& place : places) {
    const DecodeState& state = *place.state;
    const bool first = largest == 0;
    require<ConfigError>(first || (state.layers.size() == places.front().state->layers.size() &&
                                   same_rotation(state.rope, joined.rope)),
                         "decode",
                         "expected states of one model and of one RoPE table; got others; make the "
                         "states with one capacity");
    if (first || state.capacity() > largest) joined.rope = state.rope;
    largest = std::max(largest, state.capacity());
  }
  if (capacity == 0) capacity = largest;
  for (size_t layer = 0; layer < places.front().state->layers.size(); ++layer) {
    std::vector<AttentionCache::Source> sources;
    for (const Place& place : places)
      sources.push_back({.cache = &place.state->layers[layer], .sequence = place.sequence});
    joined.layers.push_back(AttentionCache::gather(sources, capacity));
  }
  for (int64_t layer = 0; layer < std::ssize(joined.layers); ++layer)
    joined.sorted.emplace_back(layer);
  return joined;
}

}  // namespace

std::vector<int64_t> DecodeState::lengths() const {
  return layers.empty() ? std::vector<int64_t>{} : layers.front().lengths();
}

void DecodeState::truncate(int64_t length) {
  truncate(std::vector<int64_t>(static_cast<size_t>(sequences()), length));
}

void DecodeState::truncate(std::span<const int64_t> lengths) {
  for (AttentionCache& cache : layers) cache.truncate(lengths);
  for (SortedCopy& copy : sorted) copy.truncate(lengths);
}

DecodeState DecodeState::fork() const {
  DecodeState copy;
  copy.rope = rope;
  for (const AttentionCache& cache : layers) copy.layers.push_back(cache.fork());
  for (const SortedCopy& keys : sorted) copy.sorted.push_back(keys.fork());
  return copy;
}

int64_t DecodeState::bytes() const {
  int64_t total = 0;
  for (const AttentionCache& cache : layers) total += cache.bytes();
  for (const SortedCopy& copy : sorted) total += copy.bytes();
  return total;
}

DecodeState DecodeState::join(std::span<const DecodeState* const> states) {
  std::vector<Place> places;
  for (const DecodeState* state : states)
    for (int64_t b = 0; b < state->sequences(); ++b) places.push_back({state, b});
  return gather(places);
}

DecodeState DecodeState::select(std::span<const int64_t> sequences, int64_t capacity) const {
  std::vector<Place> places;
  for (const int64_t b : sequences) {
    require<ShapeError>(b >= 0 && b < this->sequences(), "decode",
                        "expected a sequence below {}; got {}", this->sequences(), b);
    places.push_back({this, b});
  }
  return gather(places, capacity);
}

}  // namespace fovea
