// Decoding with mixed pairs, second part: from logits to the weights of a softmax, over the
// convolution and the head mix before it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/decode/mixing_decode_convolution.h"
#include "fovea/kernels/cpu/decode/mixing_decode_logits.h"
#include "fovea/kernels/cpu/mixing/mixing_heads.h"

namespace fovea::kernels {
namespace {

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

// i - j of row `row` of the logits and vector v of a step's keys.
template <class T>
FOVEA_INLINE Int decoded_distances(const MixingDecodeTask<T>& t, int64_t row, int64_t step, int v) {
  Int key{};
  for (int i = 0; i < kLanes; ++i) key[i] = i;
  key = key + static_cast<int32_t>(t.key_begin + step * kStepKeys + v * kLanes);
  const KeyRange &near = t.near[row], &far = t.far[row];
  const Int in_near = (key >= broadcast(static_cast<int32_t>(near.begin))) &
                      (key < broadcast(static_cast<int32_t>(near.end)));
  const Int shift = in_near ? broadcast(static_cast<int32_t>(near.shift))
                            : broadcast(static_cast<int32_t>(far.shift));
  return broadcast(t.positions[row]) - (key + shift);
}

// A vector of a row's mixed logits with what joins them (stages 4 and 5).
template <class T>
FOVEA_INLINE Float decoded_terms(const MixingDecodeTask<T>& t, int64_t h, int64_t row, int64_t step,
                                 int v, const float* gate, Float s) {
  if (t.gate_form == PairGate::Form::sigmoid_logit) s = s * load(gate + v * kLanes);
  if (t.gate_form == PairGate::Form::log_sigmoid) s = s + load(gate + v * kLanes);
  return t.biased ? biased(t.rules[h], s, decoded_distances(t, row, step, v)) : s;
}

// Logits of a row and step to weights relative to the largest, with that and their sum.
template <class T>
void weigh_step(const MixingDecodeTask<T>& t, const float* s, int64_t h, int64_t i, int64_t step) {
  const int64_t logit_row = i + t.mixing.kernel_before.earlier();
  const uint64_t seen = seen_keys(t, logit_row, step);
  const int64_t row = h * t.weight_rows + i;
  const float* const gate =
      t.gates != nullptr ? t.gates + i * t.pitch + kRowMargin + step * kStepKeys : nullptr;
  const bool weighs = multiplies_weights(t.gate_form);
  Float x[kStepVectors], top = broadcast(-kInfinity);
  for (int v = 0; v < kStepVectors; ++v) {
    const Float logit = decoded_terms(t, h, logit_row, step, v, gate, load(s + v * kLanes));
    x[v] = choose(lanes_of(seen, v), logit * kLog2E, broadcast(-kInfinity));
    top = larger(top, x[v]);
  }
  const float maximum = largest(top);
  const Float m = broadcast(maximum > -kInfinity ? maximum : 0.0f);
  float* const to = t.weights + row * t.pitch + kRowMargin + step * kStepKeys;
  Float total{};
  for (int v = 0; v < kStepVectors; ++v) {
    Float weight = exp2_seen<5>(lanes_of(seen, v), x[v] - m);
    if (weighs) weight = choose(lanes_of(seen, v), weight * load(gate + v * kLanes), Float{});
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

}  // namespace
}  // namespace fovea::kernels
