// Memory of one thread of the backward mixing kernels: the maps of a strip and its rows.
//
// A map is [step][head][row][key]: all rows of a step's keys lie together, so that a product reads
// whole cache lines of neighbouring rows. Maps that a convolution reads are windows: each step
// repeats kKeyHalo keys of the steps on either side of it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/arena.h"
#include "fovea/kernels/cpu/mixing/mixing_convolution.h"
#include "fovea/kernels/cpu/mixing/mixing_gradient_task.h"
#include "fovea/kernels/cpu/mixing/mixing_heads.h"

namespace fovea::kernels {
namespace {

/// Numbers by step, head, row and key; `slots` steps are kept, step n in slot n % slots.
struct StepMap {
  float* data = nullptr;
  int64_t row = 0, head = 0, slot = 0, slots = 0, halo = 0;

  float* at(int64_t h, int64_t r, int64_t n) const {
    return data + n % slots * slot + h * head + r * row + halo;
  }
  HeadStep<float> heads(int64_t r, int64_t n) const { return {at(0, r, n), head}; }
  HeadStep<const float> inputs(int64_t r, int64_t n) const { return {at(0, r, n), head}; }
  int64_t floats() const { return slot * slots; }
};

/// Rows whose products with other heads are made together: they stay in the first-level cache.
constexpr int64_t kRowsTogether = 4;
/// Rows of all heads of which several maps stay in the second-level cache.
constexpr int64_t kNearRows = kRows > 8 ? 32 : 24;
static_assert(kNearRows % kRowsTogether == 0 && kNearRows % kRows == 0);

/// The words of a kernel's taps in pairs, [head][cq][tap_words()].
struct PairedKernels {
  Word *taps = nullptr, *turned = nullptr;
};

/// Everything in the memory of a thread.
struct GradientMaps {
  StepMap logits;      ///< s0, hidden where not seen (eq4: raw)
  StepMap convolved;   ///< s1
  StepMap weights;     ///< P
  StepMap joined;      ///< P1 or P2
  StepMap last;        ///< P3, dropped
  StepMap dlast;       ///< dP3, dropped
  StepMap djoined;     ///< dP1
  StepMap dweights;    ///< dP
  StepMap dconvolved;  ///< ds1
  StepMap dlogits;     ///< ds0

  /// [head][row][pitch]: q of the frame, scaled where words are float32, and own dO.
  Word *q = nullptr, *dout = nullptr;
  /// The same as right operands: [head][row or pair of rows][columns]. float32: the same memory.
  Word *q_rows = nullptr, *dout_rows = nullptr;
  Word *step_rows = nullptr, *woven = nullptr;  ///< one head's rows of a step as pairs
  Word* turned = nullptr;                    ///< `woven` by key, turned_row() words each: for tiles
  float *lse2 = nullptr, *factor = nullptr;  ///< [head][row], [row]: scale_i
  /// [head][row]: q or dO of the row is not finite; it stands as zeros.
  int32_t *bad_q = nullptr, *bad_dout = nullptr;
  float* delta = nullptr;                               ///< [head][row][kLanes]: sum P dP
  float *row_sum = nullptr, *row_dot = nullptr;         ///< likewise: sum P1, sum P2 dP2
  uint64_t* seen = nullptr;                             ///< [step, one before and behind][row]
  int32_t *live_begin = nullptr, *live_end = nullptr;   ///< [step]: rows that see some key of it
  float *back_before = nullptr, *back_after = nullptr;  ///< kernels turned round
  float* windows = nullptr;                             ///< [cq][kWindowPitch]: of one row
  /// Taps in pairs, as they stand and turned round, of all heads.
  PairedKernels before_pairs, after_pairs;
  /// One head's rows of two maps as bfloat16: [frame + kRowsBehind][kWindowPitch + kLanes].
  uint16_t *halves = nullptr, *other_halves = nullptr;
  float* rows = nullptr;   ///< [head][kRowsTogether][kStepKeys], rows_head apart
  float* mixed = nullptr;  ///< likewise: s2 of one row, where a gate multiplies it
  float* dgate = nullptr;  ///< [kStepKeys]: of z, one row
  int64_t rows_head = 0;
  float *kernel_before = nullptr, *kernel_after = nullptr, *mix_before = nullptr,
        *mix_after = nullptr;  ///< sums, lane by lane
  int64_t sum_floats = 0;      ///< of all four
  int64_t floats = 0;          ///< of everything
};

/// Pairs of rows of a frame in whole tiles, with some that its first one may leave out.
template <class T>
constexpr int64_t turned_row(const MixingGradientTask<T>& t) {
  return (t.padded_frame() / 2 + 15) / 16 * 16;
}

/// Cuts the memory of a task; pass null to learn its size.
template <class P, class T>
GradientMaps gradient_maps(const MixingGradientTask<T>& t, float* memory) {
  constexpr bool pairs = P::kElements == 2;
  // Tiles read whole rows of words: rows of zeros stand behind the last ones.
  constexpr int64_t kBehind = P::kTiles ? kLanes : 0;
  GradientMaps m;
  Arena arena(memory);
  const int64_t frame = t.frame(), steps = t.most_steps;
  const auto map = [&](bool window, int64_t slots) {
    StepMap x;
    x.halo = window ? kKeyHalo : 0;
    x.row = kStepKeys + 2 * x.halo;
    // One line more, so that the heads of one row do not meet in one set of a cache.
    x.head = (frame + kRowsBehind) * x.row + 16;
    x.slot = t.heads * x.head + 16;
    x.slots = slots;
    x.data = arena.allocate(x.floats());
    return x;
  };
  const bool before = t.rows_before > 0, after = t.rows_after > 0;
  m.logits = map(before, steps);
  const bool multiplied = t.terms.gate.form == PairGate::Form::sigmoid_logit;
  m.convolved = before ? map(false, t.mix_before != nullptr || multiplied ? steps : 1) : m.logits;
  m.weights = map(after, steps);
  m.joined = after ? map(false, 1) : m.weights;
  m.last = t.mix_after != nullptr || t.drops ? map(false, 1) : m.joined;
  m.dlast = map(false, 1);
  m.dweights = map(false, steps);
  m.djoined = after ? map(true, t.renormalise ? steps : 3) : m.dweights;
  m.dconvolved = map(before, before ? 3 : 1);
  m.dlogits = before ? map(false, 1) : m.dconvolved;

  m.q = arena.allocate(t.heads * t.padded_frame() * t.key_width.pitch);
  m.dout = arena.allocate(t.heads * kGradientRows * t.value_width.pitch);
  m.q_rows = m.q;
  m.dout_rows = m.dout;
  if (pairs) {
    m.q_rows = arena.allocate((t.heads * t.padded_frame() / 2 + kBehind) * t.key_width.columns);
    m.dout_rows = arena.allocate((t.heads * kGradientRows / 2 + kBehind) * t.value_width.columns);
    m.step_rows = arena.allocate(t.padded_frame() * kStepKeys / 2);
    m.woven = arena.allocate((t.padded_frame() / 2 + kBehind) * kStepKeys);
    m.turned = P::kTiles ? arena.allocate(kStepKeys * turned_row(t)) : nullptr;
  }
  m.lse2 = arena.allocate(t.heads * frame);
  m.factor = arena.allocate(t.padded_frame());
  m.bad_q = reinterpret_cast<int32_t*>(arena.allocate(t.heads * t.padded_frame()));
  m.bad_dout = reinterpret_cast<int32_t*>(arena.allocate(t.heads * t.padded_frame()));
  m.delta = arena.allocate(t.heads * frame * kLanes);
  m.row_sum = arena.allocate(t.renormalise ? t.heads * frame * kLanes : 0);
  m.row_dot = arena.allocate(t.renormalise ? t.heads * frame * kLanes : 0);
  m.seen = reinterpret_cast<uint64_t*>(arena.allocate((steps + 2) * frame * 2));
  m.live_begin = reinterpret_cast<int32_t*>(arena.allocate(steps));
  m.live_end = reinterpret_cast<int32_t*>(arena.allocate(steps));
  const int64_t taps_before = t.rows_before * t.keys_before,
                taps_after = t.rows_after * t.keys_after;
  m.back_before = arena.allocate(t.heads * taps_before);
  m.back_after = arena.allocate(t.heads * taps_after);
  const auto paired = [&](int64_t rows, int64_t keys) {
    const int64_t words = pairs ? t.heads * rows * tap_words<P>(keys) : 0;
    return PairedKernels{.taps = arena.allocate(words), .turned = arena.allocate(words)};
  };
  m.before_pairs = paired(t.rows_before, t.keys_before);
  m.after_pairs = paired(t.rows_after, t.keys_after);
  if (pairs && (before || after)) {
    const int64_t floats = (frame + kRowsBehind) * (kWindowPitch + kLanes) / 2;
    m.halves = reinterpret_cast<uint16_t*>(arena.allocate(floats));
    m.other_halves = reinterpret_cast<uint16_t*>(arena.allocate(floats));
  }
  m.windows = arena.allocate(kMostKernelRows * kWindowPitch);
  m.rows_head = kRowsTogether * kStepKeys + 16;
  m.rows = arena.allocate(t.heads * m.rows_head);
  m.mixed = multiplied && t.mix_before != nullptr ? arena.allocate(t.heads * m.rows_head) : nullptr;
  m.dgate = arena.allocate(kStepKeys);
  const int64_t begin = arena.used();
  const auto groups = [&](int64_t width) {
    return width > 0 ? t.heads / width * padded_heads(width) * padded_heads(width) : 0;
  };
  m.kernel_before = arena.allocate(t.heads * taps_before * kLanes);
  m.kernel_after = arena.allocate(t.heads * taps_after * kLanes);
  m.mix_before = arena.allocate(groups(t.width_before) * kLanes);
  m.mix_after = arena.allocate(groups(t.width_after) * kLanes);
  m.sum_floats = arena.used() - begin;
  m.floats = arena.used();
  return m;
}

}  // namespace
}  // namespace fovea::kernels
