// Weights of all keys by a few of their components, the second step of SparQ (spec 4.4), for
// selector_rows.h.
//
//   per kWeightTile keys:   copy of the r runs
//                           x = q_I . K_I   (kPanel keys at a time, their sums in registers)
//                           m = max(m, x),  w = 2^(x - m)
//
// The keys of a component are neighbours, so lanes are keys and no product is summed over lanes.
// Runs of components may lie a power of two apart, where they share the sets of a cache: products
// read a copy, which memory fills run by run. The same rules as in selector_rows.h.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "fovea/kernels/cpu/decode/selector.h"
#include "fovea/kernels/cpu/pointwise/attention_product.h"

namespace fovea::kernels {
namespace {

// Heads whose sums of a panel are in registers at once: 4 x 2 of them, with two vectors of keys.
constexpr int64_t kSumHeads = 4;
// Keys from use to prefetch: the tile after next.
constexpr int64_t kFetchAhead = 2 * kWeightTile;

/// The softmax of one head, tile by tile.
struct RunningWeights {
  float reference = -kInfinity;
  Float total{};
};

/// Logits [0, n) of a tile become weights 2^(unit (x - reference)).
FOVEA_INLINE void weigh_tile(float* x, int64_t n, float unit, RunningWeights& state) {
  const int64_t whole = n / kLanes * kLanes;
  float rest[kLanes];
  for (int i = 0; i < kLanes; ++i) rest[i] = whole + i < n ? x[whole + i] : -kInfinity;
  Float top = load(rest);
  for (int64_t j = 0; j < whole; j += kLanes) top = larger(top, load(x + j));
  const float maximum = largest(top);
  if (maximum > state.reference) {
    state.total = state.total * exp2_lanes<5>(broadcast((state.reference - maximum) * unit));
    state.reference = maximum;
  }
  const Float m = broadcast(state.reference > -kInfinity ? state.reference : 0.0f);
  for (int64_t j = 0; j < whole; j += kLanes) {
    const Float weight = exp2_lanes<5>((load(x + j) - m) * unit);
    store(x + j, weight);
    state.total = state.total + weight;
  }
  if (whole == n) return;
  const Float weight = exp2_lanes<5>((load(rest) - m) * unit);
  state.total = state.total + weight;
  store(rest, weight);
  for (int64_t j = whole; j < n; ++j) x[j] = rest[j - whole];
}

/// From the references of a head's tiles to the factors of its weights.
FOVEA_INLINE void finish_factors(float* references, int64_t tiles, float unit,
                                 const RunningWeights& state) {
  const float share = 1.0f / sum(state.total);
  for (int64_t t = 0; t < tiles; ++t)
    references[t] = share * __builtin_exp2f((references[t] - state.reference) * unit);
}

/// Even and odd keys in order, from position `first` on.
template <int first, int... n>
FOVEA_INLINE Float zipped(Float even, Float odd, std::integer_sequence<int, n...>) {
  return __builtin_shufflevector(even, odd, ((first + n) / 2 + (first + n) % 2 * kLanes)...);
}

template <class T, class P>
class ComponentWeights {
 public:
  ComponentWeights(const ComponentRows<T>& rows, const RowWeights& to) : x_(rows), to_(to) {
    for (int64_t h = 0; h < to_.heads; ++h) pack_query(x_.q + h * x_.count, q_ + h * words());
  }

  void run() {
    RunningWeights states[kDecodeRows];
    const int64_t tiles = to_.tiles();
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t begin = t * kWeightTile;
      const int64_t n = to_.length - begin < kWeightTile ? to_.length - begin : kWeightTile;
      multiply(begin, n);
      for (int64_t h = 0; h < to_.heads; ++h) {
        weigh_tile(to_.weights + h * to_.pitch + begin, n, 1.0f, states[h]);
        to_.factors[h * tiles + t] = states[h].reference;
      }
    }
    for (int64_t h = 0; h < to_.heads; ++h)
      finish_factors(to_.factors + h * tiles, tiles, 1.0f, states[h]);
  }

 private:
  // Words that are multiplied at a time: pairs of components, or single ones.
  static constexpr int64_t kElements = P::kElements;
  int64_t words() const { return (x_.count + kElements - 1) / kElements; }

  // An odd number of components is multiplied with a last one of 0.
  void pack_query(const float* q, Word* to) const {
    for (int64_t c = 0; c < x_.count; c += kElements) {
      if constexpr (kElements == 1) {
        to[c] = q[c];
      } else {
        BFloat16 pair[2] = {};
        from_float(q[c], pair[0]);
        if (c + 1 < x_.count) from_float(q[c + 1], pair[1]);
        __builtin_memcpy(to + c / kElements, pair, sizeof(Word));
      }
    }
  }

  // Products of the n keys from `begin` and all heads; zeros fill the last panel.
  void multiply(int64_t begin, int64_t n) {
    const int64_t padded = (n + kPanel - 1) / kPanel * kPanel;
    for (int64_t c = 0; c < x_.count; ++c) {
      const T* const run = x_.keys + x_.components[c] * x_.component;
      T* const to = x_.memory + c * kWeightTile;
      fetch(run, begin + kFetchAhead);
      __builtin_memcpy(to, run + begin, n * sizeof(T));
      for (int64_t j = n; j < padded; ++j) to[j] = T{};
    }
    int64_t h = 0;
    for (; h + kSumHeads <= to_.heads; h += kSumHeads) multiply<kSumHeads>(h, begin, padded);
    for (; h < to_.heads; ++h) multiply<1>(h, begin, padded);
  }

  template <int R>
  void multiply(int64_t h, int64_t begin, int64_t padded) {
    for (int64_t j = 0; j < padded; j += kPanel) multiply_panel<R>(h, j, begin + j);
  }

  FOVEA_INLINE void fetch(const T* run, int64_t begin) const {
    const int64_t rest = to_.length - begin, n = rest < kWeightTile ? rest : kWeightTile;
    for (int64_t j = 0; j < n; j += 64 / static_cast<int64_t>(sizeof(T)))
      __builtin_prefetch(run + begin + j, 0, 2);
  }

  // Logits of the tile's panel at `from` and of heads h ... h + R, to place `to`.
  template <int R>
  void multiply_panel(int64_t h, int64_t from, int64_t place) const {
    const auto run = [&](int64_t c) FOVEA_ALWAYS { return x_.memory + c * kWeightTile + from; };
    Float sums[R][2];
    clear(sums);
    const Word* const q = q_ + h * words();
    const int64_t row = words();
    if constexpr (kElements == 1) {
      for (int64_t c = 0; c < x_.count; ++c) {
        Float keys[2];
        load_single(run(c), keys);
        add<R>(q + c, row, keys, sums);
      }
    } else {
      for (int64_t c = 0; c < x_.count; c += 2) {
        Float keys[2];
        const T* const other = run(c + 1 < x_.count ? c + 1 : c);
        P::weave(load_words(run(c)), load_words(other), keys[0], keys[1]);
        add<R>(q + c / 2, row, keys, sums);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      float* const out = to_.weights + (h + r) * to_.pitch + place;
      const Float scale = broadcast(x_.scales[h + r] * kLog2E);
      if constexpr (kElements == 1 && sizeof(T) == 2) zip(sums[r]);
      store(out, sums[r][0] * scale);
      store(out + kLanes, sums[r][1] * scale);
    }
  }

  template <int R>
  static FOVEA_INLINE void add(const Word* q, int64_t row, const Float (&keys)[2],
                               Float (&sums)[R][2]) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const Float left = broadcast(q[r * row]);
      sums[r][0] = P::multiply_add(left, keys[0], sums[r][0]);
      sums[r][1] = P::multiply_add(left, keys[1], sums[r][1]);
    }
  }

  // kLanes words; panels of a copy begin at whole words.
  static FOVEA_INLINE Float load_words(const T* keys) {
    return load(reinterpret_cast<const Word*>(keys));
  }

  // The panel's keys in order, or its even and its odd ones.
  static FOVEA_INLINE void load_single(const T* keys, Float (&to)[2]) {
    if constexpr (sizeof(T) == sizeof(Word)) {
      to[0] = load(keys), to[1] = load(keys + kLanes);
    } else {
      const Int words = reinterpret_cast<Int>(load_words(keys));
      to[0] = reinterpret_cast<Float>(words << 16);
      to[1] = reinterpret_cast<Float>(words & ~0xFFFF);
    }
  }

  static FOVEA_INLINE void zip(Float (&x)[2]) {
    constexpr std::make_integer_sequence<int, kLanes> lanes;
    const Float even = x[0], odd = x[1];
    x[0] = zipped<0>(even, odd, lanes);
    x[1] = zipped<kLanes>(even, odd, lanes);
  }

  const ComponentRows<T>& x_;
  const RowWeights& to_;
  Word q_[kDecodeRows * kWidestHead];
};

template <class T, class P>
void component_weights(const ComponentRows<T>& rows, const RowWeights& to) {
  const FlushDenormals flush;
  ComponentWeights<T, P>(rows, to).run();
}

}  // namespace
}  // namespace fovea::kernels
