// Decoding with mixed pairs, first part: which keys rows see, and the logits of a step.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/decode/attention_decode.h"
#include "fovea/kernels/cpu/decode/mixing_decode_table.h"
#include "fovea/kernels/cpu/mixing/mixing_seen.h"

namespace fovea::kernels {
namespace {

/// The keys [begin, end) of the step that begins with key `base`.
inline uint64_t bits_of_range(int64_t base, int64_t begin, int64_t end) {
  const int64_t from = begin > base ? begin - base : 0;
  const int64_t to = end - base < kStepKeys ? end - base : kStepKeys;
  return from < to ? bits_between(from, to) : 0;
}

/// The keys of step `step` that row `row` of the logits sees.
template <class T>
uint64_t seen_keys(const MixingDecodeTask<T>& t, int64_t row, int64_t step) {
  const int64_t base = t.key_begin + step * kStepKeys;
  const auto bits = [&](const KeyRange& range) {
    return bits_of_range(base, range.begin, range.end);
  };
  const uint64_t seen = bits(t.near[row]) | bits(t.far[row]);
  return t.met != nullptr ? seen & t.met[row * t.steps + step] : seen;
}

/// Whether each key of a step shares a group with the row, or is local (MemberMask).
template <class T>
void meet_members(const MixingDecodeTask<T>& t, int64_t step) {
  const int64_t base = t.key_begin + step * kStepKeys, left = t.key_end - base;
  const int64_t keys = left < kStepKeys ? left : kStepKeys;
  for (int64_t row = 0; row < t.logit_rows; ++row) {
    uint64_t& met = t.met[row * t.steps + step];
    const int64_t n = t.first_query + row;
    met = 0;
    if (n < 0) continue;
    const int64_t mine = t.members.query[n];
    alignas(64) uint64_t shared[kStepKeys] = {};
    for (int64_t j = 0; j < keys; ++j) shared[j] = (t.members.key[base + j] & mine) != 0 ? 1 : 0;
    for (int64_t j = 0; j < kStepKeys; ++j) met |= shared[j] << j;
    for (const KeyRange& range : {t.near[row], t.far[row]}) {
      // Key j of the range stands at position j + shift.
      const int64_t near = t.positions[row] - t.members.window + 1 - range.shift;
      const int64_t sinks = t.members.sinks - range.shift;
      met |= bits_of_range(base, range.begin > near ? range.begin : near, range.end);
      met |= bits_of_range(base, range.begin, range.end < sinks ? range.end : sinks);
    }
  }
}

/// Scratch of a thread: a panel of keys, and two maps [heads][rows][kStepKeys] of a step.
template <class T>
struct MixingDecodeScratch {
  Word *columns, *natural;
  float *first, *second;
  float* window;  ///< [kMostKernelRows][kWindow]

  static constexpr int64_t kWindow = kStepKeys + 2 * kRowMargin;

  static int64_t map_floats(const MixingDecodeTask<T>& t) {
    return t.heads * t.weight_rows * kStepKeys;
  }
  static int64_t floats(const MixingDecodeTask<T>& t) {
    return 2 * kPanel * t.key_width.pitch + 2 * map_floats(t) + kMostKernelRows * kWindow;
  }
  MixingDecodeScratch(const MixingDecodeTask<T>& t, float* memory)
      : columns(memory),
        natural(columns + kPanel * t.key_width.pitch),
        first(natural + kPanel * t.key_width.pitch),
        second(first + map_floats(t)),
        window(second + map_floats(t)) {}
};

template <class T, class P>
void pack_decoded_queries(const MixingDecodeTask<T>& t) {
  const int64_t pitch = t.key_width.pitch;
  for (int64_t h = 0; h < t.heads; ++h) {
    for (int64_t r = 0; r < t.logit_rows; ++r) {
      Word* const to = t.queries + (h * t.logit_rows + r) * pitch;
      const int64_t n = t.first_query + r;
      if (n >= 0) {
        copy_row<T, P>(t.q.at(0, h, n), t.key_width.elements, pitch, to);
      } else {
        for (int64_t c = 0; c < pitch; ++c) to[c] = 0.0f;
      }
    }
  }
}

// Products to logits of one vector of keys. Logits that no stage may read become 0. Under Eq. 5
// these are all that the row does not see (3.2 step 3a); under Eq. 4 only those of them that are
// not finite.
template <class T>
FOVEA_INLINE Float decoded_logits(const MixingDecodeTask<T>& t, int64_t row, Lanes seen, Float s) {
  Float slope;
  s = capped<5>(t.rules[0], s * t.scales[row], slope);
  if (t.mixing.equation == KernelEquation::eq4) {
    const Float zero = s * 0.0f;
    return choose(seen, s, zero == zero ? s : Float{});
  }
  return choose(seen, s, Float{});
}

/// The keys of a step that all rows see.
template <class T>
struct SeenStep {
  uint64_t words[kMostLogitRows];

  SeenStep(const MixingDecodeTask<T>& t, int64_t step) {
    for (int64_t row = 0; row < t.logit_rows; ++row) words[row] = seen_keys(t, row, step);
  }
};

// R rows of queries of one key head, from row n of them, against a panel of a step.
template <class T, class P, int R>
FOVEA_INLINE void multiply_panel(const MixingDecodeTask<T>& t, const Word* columns,
                                 const SeenStep<T>& seen, int64_t n, int64_t step, int64_t panel) {
  Float c[R][2];
  clear(c);
  multiply_add<P, R, 2>(c, t.key_width.words, t.queries + n * t.key_width.pitch, t.key_width.pitch,
                        1, columns, kPanel);
  int64_t row = n % t.logit_rows;
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i, row = row + 1 < t.logit_rows ? row + 1 : 0) {
    float* const to = t.logits + (n + i) * t.pitch + kRowMargin + step * kStepKeys + panel;
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const Lanes lanes = lanes_of(seen.words[row], static_cast<int>(panel) / kLanes + v);
      store(to + v * kLanes, decoded_logits(t, row, lanes, c[i][v]));
    }
  }
}

/// Rows of queries that meet keys where these lie: for so few, turning keys into panels costs more
/// than the products.
constexpr int64_t kDirectRows = 8;

// R rows of queries of one key head, from row n of them, against the keys of a step, kLanes pairs
// at a time. `base`: key 0 of the step, `keys` of which exist.
template <class T, class P, int R>
FOVEA_INLINE void multiply_direct(const MixingDecodeTask<T>& t, const T* base, int64_t keys,
                                  const SeenStep<T>& seen, int64_t n, int64_t step) {
  constexpr int kKeys = kLanes / R;
  const int64_t words = t.key_width.words, pitch = t.key_width.pitch;
  const Word* const q = t.queries + n * pitch;
  float* const to = t.logits + n * t.pitch + kRowMargin + step * kStepKeys;
  for (int64_t j = 0; j < keys; j += kKeys) {
    const T* rows[kKeys];
#pragma GCC unroll 16
    for (int i = 0; i < kKeys; ++i) rows[i] = base + (j + i < keys ? j + i : keys - 1) * t.k.row;
    Float sums[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) sums[i] = Float{};
    for (int64_t c = 0; c < words; c += kLanes) {
      Float k[kKeys];
#pragma GCC unroll 16
      for (int i = 0; i < kKeys; ++i) k[i] = load_words<T, P>(rows[i], c, words - c);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const Float row = load(q + r * pitch + c);
#pragma GCC unroll 16
        for (int i = 0; i < kKeys; ++i)
          sums[r * kKeys + i] = P::multiply_add(row, k[i], sums[r * kKeys + i]);
      }
    }
    alignas(64) float all[kLanes];
    store(all, sum_each(sums));
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
      __builtin_memcpy(to + r * t.pitch + j, all + r * kKeys, kKeys * sizeof(float));
  }
  for (int r = 0; r < R; ++r) {
    float* const row = to + r * t.pitch;
    const int64_t own = (n + r) % t.logit_rows;
    for (int v = 0; v < kStepVectors; ++v) {
      const Float s = v * kLanes < keys ? load(row + v * kLanes) : Float{};
      store(row + v * kLanes, decoded_logits(t, own, lanes_of(seen.words[own], v), s));
    }
  }
}

/// Rows of a step, before their use.
template <class T>
FOVEA_INLINE void prefetch_step(const MixingDecodeTask<T>& t, kernels::HeadRows<const T> rows,
                                int64_t g, int64_t step, int64_t elements) {
  constexpr int64_t kLine = 64 / sizeof(T);
  const int64_t begin = t.key_begin + step * kStepKeys;
  const int64_t end = begin + kStepKeys < t.key_end ? begin + kStepKeys : t.key_end;
  for (int64_t j = begin; j < end; ++j) {
    const T* const row = rows.at(0, g, j);
    for (int64_t c = 0; c < elements; c += kLine) __builtin_prefetch(row + c, 0, 2);
  }
}

template <class T, class P>
void multiply_step_direct(const MixingDecodeTask<T>& t, const SeenStep<T>& seen, int64_t g,
                          int64_t begin, int64_t end, int64_t step) {
  const int64_t first = t.key_begin + step * kStepKeys, left = t.key_end - first;
  const T* const base = t.k.at(0, g, first);
  int64_t n = begin;
  const auto multiply = [&]<int R>() {
    for (; n + R <= end; n += R)
      multiply_direct<T, P, R>(t, base, left < kStepKeys ? left : kStepKeys, seen, n, step);
  };
  multiply.template operator()<4>();
  multiply.template operator()<2>();
  multiply.template operator()<1>();
}

template <class T, class P>
void multiply_step_in_panels(const MixingDecodeTask<T>& t, const SeenStep<T>& seen,
                             const MixingDecodeScratch<T>& scratch, int64_t g, int64_t begin,
                             int64_t end, int64_t step) {
  for (int64_t panel = 0; panel < kStepKeys; panel += kPanel) {
    const int64_t key = t.key_begin + step * kStepKeys + panel, left = t.key_end - key;
    if (left <= 0) {
      for (int64_t n = begin; n < end; ++n) {
        float* const to = t.logits + n * t.pitch + kRowMargin + step * kStepKeys + panel;
        for (int64_t j = 0; j < kPanel; ++j) to[j] = 0.0f;
      }
      continue;
    }
    pack_panel<T, P>({.data = t.k.at(0, g, key),
                      .stride = t.k.row,
                      .rows = left < kPanel ? left : kPanel,
                      .next_rows = left - kPanel < kPanel ? left - kPanel : kPanel},
                     t.key_width, {.columns = scratch.columns}, scratch.natural);
    int64_t n = begin;
    const auto multiply = [&]<int R>() {
      for (; n + R <= end; n += R)
        multiply_panel<T, P, R>(t, scratch.columns, seen, n, step, panel);
    };
    multiply.template operator()<kRows>();
    multiply.template operator()<4>();
    multiply.template operator()<3>();
    multiply.template operator()<2>();
    multiply.template operator()<1>();
  }
}

template <class T, class P>
void decoded_logits_of_step(const MixingDecodeTask<T>& t, int64_t item, float* memory) {
  const FlushDenormals flush;
  const MixingDecodeScratch<T> scratch(t, memory);
  const int64_t step = item / t.kv_heads, g = item % t.kv_heads;
  const SeenStep<T> seen(t, step);
  const int64_t begin = t.heads / t.kv_heads * g * t.logit_rows,
                end = begin + t.heads / t.kv_heads * t.logit_rows;
  if (end - begin <= kDirectRows) {
    prefetch_step(t, t.k, g, step + 1, t.key_width.elements);
    prefetch_step(t, t.v, g, step, t.value_width.elements);
    multiply_step_direct<T, P>(t, seen, g, begin, end, step);
  } else {
    multiply_step_in_panels<T, P>(t, seen, scratch, g, begin, end, step);
  }
  for (int64_t n = begin; n < end; ++n) {
    float* const row = t.logits + n * t.pitch;
    for (int64_t j = 0; step == 0 && j < kRowMargin; ++j) row[j] = 0.0f;
    for (int64_t j = t.pitch - kRowMargin; step == t.steps - 1 && j < t.pitch; ++j) row[j] = 0.0f;
  }
}

}  // namespace
}  // namespace fovea::kernels
