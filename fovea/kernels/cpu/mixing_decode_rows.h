// The stages of mixing_decode.h, written once and compiled once per instruction set.
//
// Included by mixing_decode_<isa>.cpp only, inside an anonymous namespace: every function has
// internal linkage, because a copy built for a wide instruction set must never serve a narrow
// caller. No standard containers here, for the same reason.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/mixing_decode_convolution.h"
#include "fovea/kernels/cpu/mixing_decode_table.h"
#include "fovea/kernels/cpu/mixing_heads.h"

namespace fovea::kernels {
namespace {

/// The keys of step `step` that row `row` of the logits sees.
template <class T>
uint64_t seen_keys(const MixingDecodeTask<T>& t, int64_t row, int64_t step) {
  const int64_t base = t.key_begin + step * kStepKeys;
  const auto bits = [&](const KeyRange& range) {
    const int64_t from = range.begin > base ? range.begin - base : 0;
    const int64_t to = range.end - base < kStepKeys ? range.end - base : kStepKeys;
    return from < to ? bits_between(from, to) : 0;
  };
  return bits(t.near[row]) | bits(t.far[row]);
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

// Products to logits of one vector of keys. What no stage may read becomes 0: under Eq. 5 what the
// row does not see (3.2 step 3a), under Eq. 4 of that what is not finite.
template <class T>
FOVEA_INLINE Float decoded_logits(const MixingDecodeTask<T>& t, int64_t row, Lanes seen, Float s) {
  Float slope;
  s = capped(t.rule, s * t.scales[row], slope);
  if (t.mixing.equation == KernelEquation::eq4) {
    const Float zero = s * 0.0f;
    return choose(seen, s, zero == zero ? s : Float{});
  }
  return choose(seen, s, Float{});
}

/// What all rows see of a step.
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

template <class T, class P>
void decoded_logits_of_step(const MixingDecodeTask<T>& t, int64_t item, float* memory) {
  const FlushDenormals flush;
  const MixingDecodeScratch<T> scratch(t, memory);
  const int64_t step = item / t.kv_heads, g = item % t.kv_heads;
  const SeenStep<T> seen(t, step);
  const int64_t begin = t.heads / t.kv_heads * g * t.logit_rows,
                end = begin + t.heads / t.kv_heads * t.logit_rows;
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
  for (int64_t n = begin; n < end; ++n) {
    float* const row = t.logits + n * t.pitch;
    for (int64_t j = 0; step == 0 && j < kRowMargin; ++j) row[j] = 0.0f;
    for (int64_t j = t.pitch - kRowMargin; step == t.steps - 1 && j < t.pitch; ++j) row[j] = 0.0f;
  }
}

// Eq. 4 (M-1): the rows that result `i` reads, but for the keys that it does not see itself.
template <class T>
ConvolvedRows rows_seen_by(const MixingDecodeTask<T>& t, const ConvolvedRows& rows, int64_t i,
                           int64_t step, float* window) {
  constexpr int64_t kWindow = MixingDecodeScratch<T>::kWindow;
  const int64_t row = i + t.mixing.kernel_before.earlier();
  const auto seen = [&](int64_t n) {
    return n < 0 || n >= t.steps ? uint64_t{0} : seen_keys(t, row, n);
  };
  const uint64_t words[3] = {seen(step - 1), seen(step), seen(step + 1)};
  for (int64_t a = 0; a < t.mixing.kernel_before.queries; ++a) {
    for (int64_t c = -kRowMargin; c < kStepKeys + kRowMargin; c += kLanes) {
      const int64_t place = c + kStepKeys;
      const Lanes lanes =
          lanes_of(words[place / kStepKeys], static_cast<int>(place % kStepKeys) / kLanes);
      store(window + a * kWindow + kRowMargin + c,
            choose(lanes, load(rows.from(i + a).x + c), Float{}));
    }
  }
  return {window + kRowMargin, kWindow};
}

/// Rows [0, count) of a step of one head: the convolution of `rows`, or they themselves.
inline void convolved_step(const ConvolvedRows& rows, const KeyQueryKernel& kernel, int64_t h,
                           int64_t count, float* out) {
  if (kernel.active()) {
    const float* const taps = kernel.taps + h * kernel.queries * kernel.keys;
    return convolve_rows_of_step(rows, single_taps(taps, kernel.queries, kernel.keys), count, out);
  }
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < kStepKeys; c += kLanes)
      store(out + i * kStepKeys + c, load(rows.from(i).x + c));
  }
}

// Logits of a row and step to weights relative to the largest, with that and their sum.
template <class T>
void weigh_step(const MixingDecodeTask<T>& t, const float* s, int64_t h, int64_t i, int64_t step) {
  const uint64_t seen = seen_keys(t, i + t.mixing.kernel_before.earlier(), step);
  const int64_t row = h * t.weight_rows + i;
  Float x[kStepVectors], top = broadcast(-kInfinity);
  for (int v = 0; v < kStepVectors; ++v) {
    x[v] = choose(lanes_of(seen, v), load(s + v * kLanes) * kLog2E, broadcast(-kInfinity));
    top = larger(top, x[v]);
  }
  const float maximum = largest(top);
  const Float m = broadcast(maximum > -kInfinity ? maximum : 0.0f);
  float* const to = t.weights + row * t.pitch + kRowMargin + step * kStepKeys;
  Float total{};
  for (int v = 0; v < kStepVectors; ++v) {
    const Float weight = exp2_seen<5>(lanes_of(seen, v), x[v] - m);
    total = total + weight;
    store(to + v * kLanes, weight);
  }
  t.tops[row * t.step_pitch + step] = maximum;
  t.totals[row * t.step_pitch + step] = sum(total);
}

template <class T>
void decoded_weights_of_step(const MixingDecodeTask<T>& t, int64_t step, float* memory) {
  const FlushDenormals flush;
  const MixingDecodeScratch<T> scratch(t, memory);
  const KeyQueryKernel& kernel = t.mixing.kernel_before;
  const bool each_row = kernel.active() && t.mixing.equation == KernelEquation::eq4;
  const int64_t head = t.weight_rows * kStepKeys;
  for (int64_t h = 0; h < t.heads; ++h) {
    const ConvolvedRows rows{t.logits + h * t.logit_rows * t.pitch + kRowMargin + step * kStepKeys,
                             t.pitch};
    float* const out = scratch.first + h * head;
    for (int64_t i = 0; each_row && i < t.weight_rows; ++i)
      convolved_step(rows_seen_by(t, rows, i, step, scratch.window), kernel, h, 1,
                     out + i * kStepKeys);
    if (!each_row) convolved_step(rows, kernel, h, t.weight_rows, out);
  }
  const HeadMix& mix = t.mixing.mix_before;
  for (int64_t i = 0; i < t.weight_rows; ++i) {
    const float *const given = scratch.first + i * kStepKeys, *const mixed =
                                                                  scratch.second + i * kStepKeys;
    if (mix.active())
      mix_heads({given, head}, mix.weights, t.heads, mix.width,
                {scratch.second + i * kStepKeys, head});
    for (int64_t h = 0; h < t.heads; ++h)
      weigh_step(t, (mix.active() ? mixed : given) + h * head, h, i, step);
  }
}

// A row that is not a number: so is everything that it sees.
template <class T>
void spoil_row(const MixingDecodeTask<T>& t, int64_t row) {
  float* const weights = t.weights + row * t.pitch + kRowMargin;
  for (int64_t step = 0; step < t.steps; ++step) {
    const uint64_t seen =
        seen_keys(t, row % t.weight_rows + t.mixing.kernel_before.earlier(), step);
    for (int v = 0; v < kStepVectors; ++v)
      store(weights + step * kStepKeys + v * kLanes,
            choose(lanes_of(seen, v), broadcast(__builtin_nanf("")), Float{}));
  }
}

template <class T>
void normalise_decoded_row(const MixingDecodeTask<T>& t, int64_t row) {
  const FlushDenormals flush;
  float *const tops = t.tops + row * t.step_pitch, *const totals = t.totals + row * t.step_pitch;
  const float sink = t.sinks != nullptr ? t.sinks[row / t.weight_rows] * kLog2E : -kInfinity;
  Float top = broadcast(sink);
  for (int64_t n = 0; n < t.step_pitch; n += kLanes) top = larger(top, load(tops + n));
  const float maximum = largest(top), m = maximum > -kInfinity ? maximum : 0.0f;
  Float all{};
  for (int64_t n = 0; n < t.step_pitch; n += kLanes) {
    const Float factor = exp2_lanes<5>(load(tops + n) - broadcast(m));
    all = all + factor * load(totals + n);
    store(tops + n, factor);
  }
  const float total = sum(all) + (sink > -kInfinity ? __builtin_exp2f(sink - m) : 0.0f);
  float* const weights = t.weights + row * t.pitch;
  if (total != total) {
    spoil_row(t, row);
  } else {
    const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
    for (int64_t step = 0; step < t.steps; ++step) {
      const Float factor = broadcast(tops[step] * inverse);
      float* const at = weights + kRowMargin + step * kStepKeys;
      for (int64_t c = 0; c < kStepKeys; c += kLanes) store(at + c, load(at + c) * factor);
    }
  }
  for (int64_t j = 0; j < kRowMargin; ++j) weights[j] = weights[t.pitch - kRowMargin + j] = 0.0f;
  const int64_t i = row % t.weight_rows - (t.weight_rows - t.results);
  if (t.lse != nullptr && i >= 0)
    t.lse[row / t.weight_rows * t.results + i] =
        total == 0.0f ? -kInfinity : (m + __builtin_log2f(total)) * kLn2;
}

// Convolved weights of a step [heads][results][kStepKeys]: 0 where not seen (3.2 step 6).
template <class T>
void convolve_weights(const MixingDecodeTask<T>& t, int64_t step, float* out) {
  const KeyQueryKernel& kernel = t.mixing.kernel_after;
  for (int64_t h = 0; h < t.heads; ++h) {
    const ConvolvedRows rows{
        t.weights + h * t.weight_rows * t.pitch + kRowMargin + step * kStepKeys, t.pitch};
    float* const results = out + h * t.results * kStepKeys;
    convolved_step(rows, kernel, h, t.results, results);
    for (int64_t i = 0; kernel.active() && i < t.results; ++i) {
      const uint64_t seen = seen_keys(t, i + t.mixing.earlier(), step);
      float* const row = results + i * kStepKeys;
      for (int v = 0; v < kStepVectors; ++v)
        store(row + v * kLanes, choose(lanes_of(seen, v), load(row + v * kLanes), Float{}));
    }
  }
}

template <class T>
void sum_decoded_step(const MixingDecodeTask<T>& t, int64_t step, float* memory) {
  const FlushDenormals flush;
  const MixingDecodeScratch<T> scratch(t, memory);
  convolve_weights(t, step, scratch.first);
  for (int64_t n = 0; n < t.heads * t.results; ++n) {
    Float total{};
    for (int v = 0; v < kStepVectors; ++v)
      total = total + load(scratch.first + n * kStepKeys + v * kLanes);
    t.sums[n * t.steps + step] = sum(total);
  }
}

// Rows divided by their sums, where there is one (M-9).
template <class T>
void renormalise_step(const MixingDecodeTask<T>& t, float* weights) {
  for (int64_t n = 0; n < t.heads * t.results; ++n) {
    float total = 0.0f;
    for (int64_t step = 0; step < t.steps; ++step) total += t.sums[n * t.steps + step];
    if (!(__builtin_fabsf(total) > 1e-6f)) continue;
    const Float inverse = broadcast(1.0f / total);
    for (int v = 0; v < kStepVectors; ++v) {
      float* const at = weights + n * kStepKeys + v * kLanes;
      store(at, load(at) * inverse);
    }
  }
}

/// kLanes numbers of a row as float32, `left` of which exist.
template <class T>
FOVEA_INLINE Float decoded_value(const T* row, int64_t left) {
#if defined(__AVX512F__)
  return row_floats(row, first_lanes(left < kLanes ? left : kLanes));
#else
  Float x{};
  for (int64_t i = 0; i < (left < kLanes ? left : kLanes); ++i) x[i] = to_float(row[i]);
  return x;
#endif
}

// R x kValueVectors sums, as many values and a weight must fit the registers.
#if defined(__AVX512F__)
constexpr int kValueVectors = 4;
#else
constexpr int kValueVectors = 2;
#endif

// O[n] += sum_j weights[n][j] v_j of R heads of one query over keys [begin, end) of a step.
template <class T, int R>
FOVEA_INLINE void add_decoded_values(const MixingDecodeTask<T>& t, const float* weights,
                                     int64_t head, const T* v, const KeyRange& keys, float* out) {
  const int64_t columns = t.value_width.columns, out_head = t.results * columns;
  for (int64_t c = 0; c < columns; c += kValueVectors * kLanes) {
    const int64_t left = columns - c;
    const int vectors =
        static_cast<int>(left < kValueVectors * kLanes ? left / kLanes : kValueVectors);
    Float sums[R][kValueVectors];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int n = 0; n < kValueVectors; ++n)
        sums[r][n] = n < vectors ? load(out + r * out_head + c + n * kLanes) : Float{};
    }
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      Float row[kValueVectors];
#pragma GCC unroll 4
      for (int n = 0; n < kValueVectors; ++n)
        row[n] = n < vectors ? decoded_value(v + j * t.v.row + c + n * kLanes,
                                             t.value_width.elements - c - n * kLanes)
                             : Float{};
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const Float weight = broadcast(weights[r * head + j]);
#pragma GCC unroll 4
        for (int n = 0; n < kValueVectors; ++n) sums[r][n] = weight * row[n] + sums[r][n];
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int n = 0; n < kValueVectors; ++n)
        if (n < vectors) store(out + r * out_head + c + n * kLanes, sums[r][n]);
    }
  }
}

// One query of all heads: the values that it sees of a step. `weights`: of head 0.
template <class T>
void add_step(const MixingDecodeTask<T>& t, int64_t i, int64_t step, const float* weights,
              float* out) {
  const int64_t base = t.key_begin + step * kStepKeys, row = i + t.mixing.earlier();
  const int64_t together = t.heads / t.kv_heads, head = t.results * kStepKeys;
  for (const KeyRange* range : {t.near + row, t.far + row}) {
    const KeyRange keys{.begin = range->begin > base ? range->begin - base : 0,
                        .end = range->end - base < kStepKeys ? range->end - base : kStepKeys};
    if (keys.begin >= keys.end) continue;
    for (int64_t g = 0; g < t.kv_heads; ++g) {
      const T* const v = t.v.at(0, g, base);
      int64_t h = g * together;
      const int64_t last = h + together;
      const auto add = [&]<int R>() {
        for (; h + R <= last; h += R)
          add_decoded_values<T, R>(t, weights + h * head, head, v, keys,
                                   out + h * t.results * t.value_width.columns);
      };
      add.template operator()<4>();
      add.template operator()<3>();
      add.template operator()<2>();
      add.template operator()<1>();
    }
  }
}

template <class T>
void decoded_values_of_chunk(const MixingDecodeTask<T>& t, int64_t chunk, float* memory) {
  const FlushDenormals flush;
  const MixingDecodeScratch<T> scratch(t, memory);
  const int64_t columns = t.value_width.columns, head = t.results * kStepKeys;
  float* const part = t.parts + chunk * t.heads * t.results * columns;
  for (int64_t n = 0; n < t.heads * t.results * columns; ++n) part[n] = 0.0f;
  const int64_t end = (chunk + 1) * kValueSteps < t.steps ? (chunk + 1) * kValueSteps : t.steps;
  for (int64_t step = chunk * kValueSteps; step < end; ++step) {
    convolve_weights(t, step, scratch.first);
    if (t.sums != nullptr) renormalise_step(t, scratch.first);
    for (int64_t i = 0; i < t.results; ++i) {
      const float* weights = scratch.first + i * kStepKeys;
      if (t.mix_after != nullptr) {
        mix_heads({weights, head}, t.mix_after, t.heads, t.mixing.mix_after.width,
                  {scratch.second + i * kStepKeys, head});
        weights = scratch.second + i * kStepKeys;
      }
      add_step(t, i, step, weights, part + i * columns);
    }
  }
}

template <class T>
void finish_decoded_row(const MixingDecodeTask<T>& t, int64_t item) {
  const FlushDenormals flush;
  const int64_t columns = t.value_width.columns, row = t.heads * t.results * columns;
  const int64_t chunks = (t.steps + kValueSteps - 1) / kValueSteps;
  float sums[kWidestHead] = {};
  for (int64_t n = 0; n < chunks; ++n) {
    const float* const part = t.parts + n * row + item * columns;
    for (int64_t c = 0; c < columns; c += kLanes) store(sums + c, load(sums + c) + load(part + c));
  }
  T* const out = t.out.at(0, item / t.results, item % t.results);
  for (int64_t c = 0; c < t.value_width.elements; ++c) from_float(sums[c], out[c]);
}

template <class T, class P>
constexpr MixingDecodeTable<T> mixing_decode_of(const char* isa) {
  return {.isa = isa,
          .elements = P::kElements,
          .lanes = kLanes,
          .scratch_floats = MixingDecodeScratch<T>::floats,
          .pack = pack_decoded_queries<T, P>,
          .logits = decoded_logits_of_step<T, P>,
          .weights = decoded_weights_of_step<T>,
          .normalise = normalise_decoded_row<T>,
          .sum = sum_decoded_step<T>,
          .values = decoded_values_of_chunk<T>,
          .finish = finish_decoded_row<T>};
}

}  // namespace
}  // namespace fovea::kernels
