// The memory of one thread that walks strips forward.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/arena.h"
#include "fovea/kernels/cpu/mixing/mixing_convolution.h"
#include "fovea/kernels/cpu/mixing/mixing_heads.h"

namespace fovea::kernels {
namespace {

/// Floats from one row of a window's head to the next head. The cache lines are odd in number, so
/// that the heads of one row do not meet in one cache set.
constexpr int64_t kStripPitch = kStripRows * kStepKeys + 16;
/// Rows that are mixed before their values are added: their mixed weights stay in a second-level
/// cache, and values are read once for all of them.
constexpr int64_t kMixRows = kRows > 8 ? 48 : 24;
constexpr int64_t kMixPitch = kMixRows * kStepKeys + 16;
static_assert(kStripRows % kMixRows == 0 && kMixRows % kRows == 0);

/// Rows that strips hand on, by step: of strip n those of half n % 2. The contents of a step count
/// only where `strip` says that the strip before wrote it.
struct Carry {
  float* rows = nullptr;     ///< [2][blocks][heads][earlier][kStepKeys]
  int32_t* strip = nullptr;  ///< [2][blocks]
  int64_t blocks = 0, head = 0, heads = 0;

  FOVEA_INLINE int64_t at(int64_t strip_number, int64_t step) const {
    return (strip_number & 1) * blocks + step;
  }
  /// Rows of one head at a step, null where the strip before has none: then they are zeros.
  FOVEA_INLINE const float* before(int64_t strip_number, int64_t step, int64_t h) const {
    const int64_t n = at(strip_number - 1, step);
    return strip[n] == strip_number - 1 ? rows + (n * heads + h) * head : nullptr;
  }
  FOVEA_INLINE float* write(int64_t strip_number, int64_t step, int64_t h) const {
    const int64_t n = at(strip_number, step);
    strip[n] = static_cast<int32_t>(strip_number);
    return rows + (n * heads + h) * head;
  }
};

struct StripScratch {
  uint64_t *seen, *seen_weights, *seen_results;  ///< words; of softmax and results: one step's
  Word* q;                                       ///< [heads][halo + rows][pitch]
  float* scale;                                  ///< [halo + rows]
  Word* window;                                  ///< one head's, with kWindowStep words a step
  float* numbers;  ///< the same as float32, where a window holds pairs; else the window
  Word *taps_before, *taps_after;        ///< of all heads, where windows hold pairs
  Word *history_before, *history_after;  ///< [heads][halo + rows][kHistory]
  Carry before, after;
  float *rows, *mixed;        ///< of a step: [heads][kStripPitch], [heads][kMixPitch]
  Word* paired;               ///< `mixed` in pairs
  float* weights;             ///< exponentials, [steps, or one][heads][kStripPitch]
  bool keeps_weights;         ///< those of all steps
  float *sums, *references;   ///< [heads][rows][kLanes], [heads][rows]
  float *factors, *row_sums;  ///< [heads][rows]; [heads][rows][kLanes]
  float* mix_after;           ///< a matrix of all groups for every row
  float* out;                 ///< [heads][rows][value columns]
  int64_t floats;

  /// For kernels whose operands are those of P.
  template <class T, class P>
  StripScratch(const MixingStrips<T>& t, P, float* memory) {
    constexpr bool pairs = P::kElements == 2;
    Arena arena(memory);
    const int64_t rows_in = kHaloRows + kStripRows, all = t.heads * kStripRows;
    seen = reinterpret_cast<uint64_t*>(arena.allocate(2 * t.steps.most * kStripRows));
    seen_weights = reinterpret_cast<uint64_t*>(arena.allocate(2 * kStripRows));
    seen_results = reinterpret_cast<uint64_t*>(arena.allocate(2 * kStripRows));
    q = arena.allocate(t.heads * rows_in * t.key_width.pitch);
    scale = arena.allocate(rows_in);
    window = arena.allocate(rows_in * kWindowPitch);
    numbers = pairs ? arena.allocate(rows_in * kWindowPitch) : window;
    taps_before = arena.allocate(pairs ? t.heads * t.rows_before * tap_words<P>(t.keys_before) : 0);
    taps_after = arena.allocate(pairs ? t.heads * t.rows_after * tap_words<P>(t.keys_after) : 0);
    paired = arena.allocate(pairs ? t.heads * kMixPitch / 2 : 0);
    history_before = arena.allocate(t.rows_before > 0 ? t.heads * rows_in * kHistory : 0);
    history_after = arena.allocate(t.rows_after > 0 ? t.heads * rows_in * kHistory : 0);
    before = carry(t, t.rows_before, arena);
    after = carry(t, t.rows_after, arena);
    rows = arena.allocate(t.heads * kStripPitch);
    mixed = arena.allocate(t.heads * kMixPitch);
    keeps_weights = t.steps.most * t.heads * kStripPitch <= t.most_kept;
    weights = arena.allocate((keeps_weights ? t.steps.most : 1) * t.heads * kStripPitch);
    sums = arena.allocate(all * kLanes);
    references = arena.allocate(all);
    factors = arena.allocate(all);
    row_sums = arena.allocate(t.renormalise ? all * kLanes : 0);
    mix_after = arena.allocate(t.mix_after != nullptr ? all * t.width_after : 0);
    out = arena.allocate(all * t.value_width.columns);
    floats = arena.used();
  }

 private:
  template <class T>
  static Carry carry(const MixingStrips<T>& t, int64_t kernel_rows, Arena& arena) {
    if (kernel_rows < 2) return {};
    const int64_t head = (kernel_rows - 1) * kStepKeys, blocks = t.steps.blocks;
    return {.rows = arena.allocate(2 * blocks * t.heads * head),
            .strip = reinterpret_cast<int32_t*>(arena.allocate(2 * blocks)),
            .blocks = blocks,
            .head = head,
            .heads = t.heads};
  }
};

}  // namespace
}  // namespace fovea::kernels
