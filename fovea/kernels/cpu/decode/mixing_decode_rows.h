// The stages of mixing_decode.h, written once and compiled once per instruction set
// (kernel_table.h); here the last part: convolved and mixed weights, and the values.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/decode/mixing_decode_weights.h"
#include "fovea/kernels/cpu/kernel_table.h"

namespace fovea::kernels {
namespace {

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

// R x kValueVectors sums, as many values and a weight must fit the registers.
constexpr int kValueVectors = kRegisters == 32 ? 4 : 2;

// N vectors of columns of R heads of one query, `exist` columns of which are there (whole: all).
template <class T, int R, int N, bool whole>
FOVEA_INLINE void add_decoded_columns(const MixingDecodeTask<T>& t, const float* weights,
                                      int64_t head, const T* v, const KeyRange& keys, int64_t exist,
                                      float* out) {
  const int64_t out_head = t.results * t.value_width.columns;
  Float sums[R][N];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sums[r][n] = load(out + r * out_head + n * kLanes);
  }
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    Float row[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n)
      row[n] =
          load_words<T, Single>(v + j * t.v.row, n * kLanes, whole ? kLanes : exist - n * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const Float weight = broadcast(weights[r * head + j]);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sums[r][n] = weight * row[n] + sums[r][n];
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) store(out + r * out_head + n * kLanes, sums[r][n]);
  }
}

// O[n] += sum_j weights[n][j] v_j of R heads of one query over keys [begin, end) of a step.
template <class T, int R>
FOVEA_INLINE void add_decoded_values(const MixingDecodeTask<T>& t, const float* weights,
                                     int64_t head, const T* v, const KeyRange& keys, float* out) {
  constexpr int64_t kWide = kValueVectors * kLanes;
  const int64_t elements = t.value_width.elements;
  int64_t c = 0;
  for (; c + kWide <= elements; c += kWide)
    add_decoded_columns<T, R, kValueVectors, true>(t, weights, head, v + c, keys, kWide, out + c);
  for (; c < elements; c += kLanes)
    add_decoded_columns<T, R, 1, false>(t, weights, head, v + c, keys, elements - c, out + c);
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

template <Isa isa, class T, class P = VectorWords>
constexpr MixingDecodeTable<T> table_of() {
  return {.isa = kIsaNames[static_cast<int>(isa)],
          .elements = P::kElements,
          .lanes = kLanes,
          .scratch_floats = MixingDecodeScratch<T>::floats,
          .pack = pack_decoded_queries<T, P>,
          .meet = meet_members<T>,
          .logits = decoded_logits_of_step<T, P>,
          .weights = decoded_weights_of_step<T>,
          .normalise = normalise_decoded_row<T>,
          .sum = sum_decoded_step<T>,
          .values = decoded_values_of_chunk<T>,
          .finish = finish_decoded_row<T>};
}

}  // namespace
}  // namespace fovea::kernels
