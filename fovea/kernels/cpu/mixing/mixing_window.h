// The logits of one strip of the forward mixing kernels, and the windows that convolutions read
// (docs/kernels/mixing.md). A window has rows of the strip before and the last keys of the step
// before.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/mixing/mixing_convolution.h"
#include "fovea/kernels/cpu/mixing/mixing_scratch.h"
#include "fovea/kernels/cpu/pointwise/attention_tiles.h"

namespace fovea::kernels {
namespace {

template <class T, class P>
class StripWindows {
 protected:
  /// Operands are pairs of bfloat16; so are windows, except those of eq4, which hides single keys.
  static constexpr bool kPairs = P::kElements == 2;
  static constexpr int64_t kStepWords = kStepKeys / P::kElements;
  /// Words of a step in a window, but for eq4.
  static constexpr int64_t kStep = kWindowStep<P>;

  StripWindows(const MixingStrips<T>& task, float* memory)
      : t_(task),
        s_(task, P{}, memory),
        seen_(task, s_.seen),
        lag_before_(task.rows_before > 0 ? kKernelLag : 0),
        eq4_(task.rows_before > 0 && task.equation == KernelEquation::eq4) {}

  void pack_taps() const {
    for (int64_t h = 0; h < t_.heads; ++h) {
      pack_taps(t_.head[h].taps_before, h, t_.rows_before, t_.keys_before, s_.taps_before);
      pack_taps(t_.head[h].taps_after, h, t_.rows_after, t_.keys_after, s_.taps_after);
    }
  }
  static void pack_taps(const float* taps, int64_t h, int64_t rows, int64_t keys, Word* all) {
    write_taps<P>(taps, rows, keys, (keys - 1) / 2, packed_taps(all, h, rows, keys));
  }
  static Word* packed_taps(Word* all, int64_t h, int64_t rows, int64_t keys) {
    return all + h * rows * tap_words<P>(keys);
  }

  static void forget(const Carry& carry) {
    for (int64_t n = 0; n < 2 * carry.blocks; ++n) carry.strip[n] = -2;
  }

  void load_queries() {
    const int64_t pitch = t_.key_width.pitch;
    for (int64_t r = -kHaloRows; r < kStripRows; ++r) {
      const int64_t i = first_ + r;
      const bool real = i >= 0 && i < t_.queries && (r >= 0 || eq4_);
      s_.scale[kHaloRows + r] = !real ? 0.0f : t_.tau != nullptr ? 1.0f / t_.tau[i] : t_.scale;
      for (int64_t h = 0; h < t_.heads; ++h) {
        float* const to = query(h, r);
        copy_row<T, P>(t_.head[h].q + (real ? i : 0) * t_.q_row, real ? t_.key_width.elements : 0,
                       pitch, to);
      }
    }
  }
  float* query(int64_t h, int64_t r) const {
    return s_.q + (h * (kHaloRows + kStripRows) + kHaloRows + r) * t_.key_width.pitch;
  }

  void convolve_logits(int64_t h, int64_t n) {
    const int64_t rows = t_.rows_before, keys = t_.keys_before;
    float* const to = s_.rows + h * kStripPitch;
    const Taps single = single_taps(t_.head[h].taps_before, rows, keys);
    if (eq4_)
      convolve<Single>(single, single, s_.seen_weights, n, to);
    else if constexpr (kPairs)
      convolve<P>(taps_of<P>(packed_taps(s_.taps_before, h, rows, keys), rows, keys), single,
                  s_.seen_weights, -1, to);
    else
      convolve<P>(single, single, s_.seen_weights, -1, to);
  }

  // History, rows of the strip before, and the logits of this step, masked unless eq4.
  void fill_window(int64_t h, int64_t n) {
    const int64_t rows = kHaloRows + kStripRows, earlier = t_.rows_before - 1;
    const int64_t step = eq4_ ? kStepKeys : kStep;
    Word* const history = s_.history_before + h * rows * kHistory;
    load_history(history, n, step);
    float* const strip = (eq4_ ? s_.window : s_.numbers) + kHaloRows * kWindowPitch + kHistory;
    if (eq4_) {
      products(h, n, -kHaloRows, nullptr, strip - kHaloRows * kWindowPitch, kWindowPitch);
      products(h, n, 0, nullptr, strip, kWindowPitch);
    } else {
      load_halo(s_.before, h, n, earlier, step);
      products(h, n, 0, seen_.of(n), strip, kWindowPitch);
      if (kPairs) pair_window();
      if (earlier > 0) hand_on(s_.before, h, n, earlier, step);
    }
    save_history(history, step);
  }

  // Here and below: `step` words of a step in a row of the window.
  void load_history(const Word* history, int64_t n, int64_t step) {
    const bool linked = seen_.follows(n);
    for (int64_t r = 0; r < kHaloRows + kStripRows; ++r) {
      for (int64_t c = 0; c < kHistory; c += kLanes)
        store(s_.window + r * (kHistory + step) + c,
              linked ? load(history + r * kHistory + c) : Float{});
    }
  }
  void save_history(Word* history, int64_t step) const {
    for (int64_t r = 0; r < kHaloRows + kStripRows; ++r) {
      for (int64_t c = 0; c < kHistory; c += kLanes)
        store(history + r * kHistory + c, load(s_.window + r * (kHistory + step) + step + c));
    }
  }

  // The strip's rows of the window in pairs. The key before a step's first is the last of history.
  void pair_window() {
    for (int64_t r = kHaloRows; r < kHaloRows + kStripRows; ++r) {
      Word* const words = s_.window + r * (kHistory + kStep) + kHistory;
      float* const numbers = s_.numbers + r * kWindowPitch + kHistory;
      if constexpr (P::kTiles) {
        for (int64_t c = 0; c < kStepKeys; c += kPanel)
          P::store_row(words + c / 2, load(numbers + c), load(numbers + c + kLanes));
        continue;
      }
      numbers[-1] = upper_half(words[-1]);
#pragma GCC unroll 4
      for (int v = 0; v < kStepVectors; ++v) {
        const float* const at = numbers + v * kLanes;
        store(words + v * kLanes, word_of(load(at - 1), load(at)));
      }
    }
  }

  void load_halo(const Carry& carry, int64_t h, int64_t n, int64_t earlier, int64_t step) {
    const float* const rows = earlier > 0 ? carry.before(strip_, seen_.step(n), h) : nullptr;
    for (int64_t r = 0; r < earlier; ++r) {
      float* const to = s_.window + (kHaloRows - earlier + r) * (kHistory + step) + kHistory;
      for (int64_t c = 0; c < step; c += kLanes)
        store(to + c, rows != nullptr ? load(rows + r * kStepKeys + c) : Float{});
    }
  }
  void hand_on(const Carry& carry, int64_t h, int64_t n, int64_t earlier, int64_t step) const {
    float* const rows = carry.write(strip_, seen_.step(n), h);
    for (int64_t r = 0; r < earlier; ++r) {
      const float* const from =
          s_.window + (kHaloRows + kStripRows - earlier + r) * (kHistory + step) + kHistory;
      for (int64_t c = 0; c < step; c += kLanes) store(rows + r * kStepKeys + c, load(from + c));
    }
  }

  // Logits of a step: all rows of the strip from row 0 on, or the halo's. `seen`: others become 0;
  // null (eq4): all keys that some row of the strip sees are computed.
  void products(int64_t h, int64_t n, int64_t row, const uint64_t* seen, float* to, int64_t pitch) {
    const int64_t rows = row < 0 ? kHaloRows : kStripRows;
    const Word* const keys = t_.head[h].keys + seen_.step(n) * kStepKeys * t_.key_width.pitch;
    for (int64_t key = 0; key < kStepKeys; key += kPanel) {
      for (int64_t r = 0; r < rows; r += kRows) {
        float* const at = to + r * pitch + key;
        const uint64_t some = (seen != nullptr ? some_of(seen + r) : some_later(n, row + r)) &
                              bits_between(key, key + kPanel);
        if (some == 0)
          clear_rows(at, pitch);
        else
          product(h, row + r, keys + key * t_.key_width.pitch, seen, key, at, pitch);
      }
    }
  }

  // Keys that some row of a tile sees.
  static FOVEA_INLINE uint64_t some_of(const uint64_t* words) {
    uint64_t some = 0;
    for (int r = 0; r < kRows; ++r) some |= words[r];
    return some;
  }
  // eq4: what some row sees for which rows [row, row + kRows) count.
  uint64_t some_later(int64_t n, int64_t row) const {
    uint64_t some = 0;
    const int64_t end = row + kRows + t_.rows_before - 1;
    for (int64_t r = row > 0 ? row : 0; r < end && r < kStripRows; ++r) some |= seen_.of(n)[r];
    return some;
  }

  static FOVEA_INLINE void clear_rows(float* at, int64_t pitch) {
    for (int r = 0; r < kRows; ++r) {
      store(at + r * pitch, Float{});
      store(at + r * pitch + kLanes, Float{});
    }
  }

  FOVEA_INLINE void product(int64_t h, int64_t row, const Word* keys, const uint64_t* seen,
                            int64_t key, float* at, int64_t pitch) {
    Float x[kRows][2];
    panel_products<P>(x, t_.key_width, query(h, row), keys);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Float scale = broadcast(s_.scale[kHaloRows + row + r]);
      x[r][0] = x[r][0] * scale;
      x[r][1] = x[r][1] * scale;
    }
    if (t_.capped) cap(h, x);
    const uint64_t all = bits_between(key, key + kPanel);
    for (int r = 0; r < kRows; ++r) {
      if (seen != nullptr && (seen[row + r] & all) != all) {
        const int v = static_cast<int>(key) / kLanes;
        x[r][0] = choose(lanes_of(seen[row + r], v), x[r][0], Float{});
        x[r][1] = choose(lanes_of(seen[row + r], v + 1), x[r][1], Float{});
      }
      store(at + r * pitch, x[r][0]);
      store(at + r * pitch + kLanes, x[r][1]);
    }
  }
  void cap(int64_t h, Float (&x)[kRows][2]) const {
    Float slope;
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < 2; ++v)
        x[r][v] = fovea::kernels::capped<5>(t_.head[h].rule, x[r][v], slope);
    }
  }

  // All rows of results; those that `seen` has no key of are zeros. `single`: the taps as they
  // stand. eq4 at step n >= 0: pairs count that the row of the result sees.
  template <class C>
  void convolve(const Taps& k, [[maybe_unused]] const Taps& single, const uint64_t* seen, int64_t n,
                float* to) {
    if constexpr (C::kTiles) return convolve_tiles(k, single, seen, to);
    const Word* const window = s_.window + kHaloRows * kWindowPitch + kHistory;
    for (int64_t r = 0; r < kStripRows; r += kConvolutionRows) {
      uint64_t some = 0;
      for (int64_t a = 0; a < kConvolutionRows; ++a) some |= seen[r + a];
      float* const out = to + r * kStepKeys;
      if (some == 0) {
        for (int64_t c = 0; c < kConvolutionRows * kStepKeys; c += kLanes) store(out + c, Float{});
      } else if (one_document(r, kConvolutionRows, k.rows) && (n < 0 || sees_all(n, r))) {
        convolve_rows<C>(window + r * kWindowPitch, k, out);
      } else {
        for (int64_t a = r; a < r + kConvolutionRows; ++a)
          convolve_alone<C>(window + a * kWindowPitch, k, n, a, to + a * kStepKeys);
      }
    }
  }

  void convolve_tiles(const Taps& k, const Taps& single, const uint64_t* seen, float* to) {
    constexpr int64_t kPitch = kHistory + kStep;
    // 16 keys before the step: 8 for the lag, 8 that a band reads before a result's own.
    const Word* const window = s_.window + kHaloRows * kPitch + kHistory - kTileWords / 2;
    for (int64_t r = 0; r < kStripRows; r += kTileRows) {
      float* const out = to + r * kStepKeys;
      if (some_of(seen + r) == 0) {
        for (int64_t c = 0; c < kTileRows * kStepKeys; c += kLanes) store(out + c, Float{});
        continue;
      }
      const Word* const oldest = window + (r - (k.rows - 1)) * kPitch;
      const auto row_of = [&](int64_t a) FOVEA_ALWAYS { return oldest + a * kPitch; };
      if (one_document(r, kTileRows, k.rows)) {
        convolve_bands(k, kPitch, row_of, out);
      } else {
        alignas(64) Word rows[kTileRows * kPitch];
        convolve_bands(
            k, kPitch,
            [&](int64_t a) {
              copy_own_rows(r, k.rows, a, row_of(a), rows);
              return rows;
            },
            out);
      }
      each_row_not_finite(out,
                          [&](int64_t n) { convolve_exactly(single, r + n, out + n * kStepKeys); });
    }
  }
  // Rows that meet kernel row a, zeros for those of a document before the result's.
  void copy_own_rows(int64_t r, int64_t kernel_rows, int64_t a, const Word* from, Word* to) const {
    constexpr int64_t kPitch = kHistory + kStep;
    for (int64_t n = 0; n < kTileRows; ++n) {
      const bool own = a >= kernel_rows - rows_of_document(r + n, kernel_rows);
      for (int64_t c = 0; c < kPitch - kTileWords / 2; ++c)
        to[n * kPitch + c] = own ? from[n * kPitch + c] : 0.0f;
    }
  }
  // One row of results from a window of bfloat16, tap by tap.
  void convolve_exactly(const Taps& single, int64_t r, float* out) const {
    const Taps taps = single.last(rows_of_document(r, single.rows));
    alignas(64) float rows[kMostKernelRows * kWindowPitch];
    for (int64_t n = 0; n < taps.rows * kWindowPitch; ++n) {
      const int64_t row = kHaloRows + r - (taps.rows - 1) + n / kWindowPitch, c = n % kWindowPitch;
      const Word word = s_.window[row * (kHistory + kStep) + kTileWords / 2 + c / 2];
      const uint32_t bits = __builtin_bit_cast(uint32_t, word);
      rows[n] = __builtin_bit_cast(float, c % 2 == 0 ? bits << 16 : bits & 0xFFFF0000u);
    }
    convolve_row<Single>(rows + (taps.rows - 1) * kWindowPitch + kHistory, taps, out);
  }

  // `count` rows from r on and all rows that they read stand in one document, or do not exist and
  // are zeros.
  bool one_document(int64_t r, int64_t count, int64_t kernel_rows) const {
    if (t_.first_row == nullptr) return true;
    const int64_t begin = first_ + r - (kernel_rows - 1), end = first_ + r + count - 1;
    const int64_t last = end < t_.queries ? end : t_.queries - 1;
    return last < 0 || t_.first_row[last] <= (begin > 0 ? begin : 0);
  }
  int64_t rows_of_document(int64_t r, int64_t kernel_rows) const {
    const int64_t i = first_ + r;
    if (t_.first_row == nullptr || i >= t_.queries) return kernel_rows;
    const int64_t rows = i - t_.first_row[i] + 1;
    return rows < kernel_rows ? rows : kernel_rows;
  }

  // eq4: every row of the tile sees every key of the window that there is.
  bool sees_all(int64_t n, int64_t r) const {
    const int64_t key = seen_.step(n) * kStepKeys, rest = t_.keys - key;
    const uint64_t outside = rest < kStepKeys ? ~bits_between(0, rest > 0 ? rest : 0) : 0;
    const uint64_t history = kAllSeen << (kStepKeys - kHistory);
    for (int64_t a = r; a < r + kConvolutionRows; ++a) {
      if ((seen_.of(n)[a] | outside) != kAllSeen) return false;
      if (key > 0 && (history_of(n, a) & history) != history) return false;
    }
    return true;
  }
  uint64_t history_of(int64_t n, int64_t r) const {
    return seen_.follows(n) ? seen_.of(n - 1)[r] : 0;
  }

  template <class C>
  FOVEA_INLINE void convolve_alone(const Word* row, const Taps& k, int64_t n, int64_t r,
                                   float* out) {
    const Taps taps = k.last(rows_of_document(r, k.rows));
    if (n < 0) return convolve_row<C>(row, taps, out);
    alignas(64) float masked[kMostKernelRows * kWindowPitch];
    const uint64_t before = history_of(n, r), here = seen_.of(n)[r];
    const float* const first = row - kHistory - (taps.rows - 1) * kWindowPitch;
    for (int64_t a = 0; a < taps.rows; ++a) {
      const float* const from = first + a * kWindowPitch;
      float* const to = masked + a * kWindowPitch;
      for (int64_t c = 0; c < kHistory; c += kLanes) {
        const int v = static_cast<int>(kStepKeys - kHistory + c) / kLanes;
        store(to + c, choose(lanes_of(before, v), load(from + c), Float{}));
      }
      for (int v = 0; v < kStepVectors; ++v) {
        const int64_t c = kHistory + v * kLanes;
        store(to + c, choose(lanes_of(here, v), load(from + c), Float{}));
      }
    }
    convolve_row<C>(masked + (taps.rows - 1) * kWindowPitch + kHistory, taps, out);
  }

  const MixingStrips<T>& t_;
  const StripScratch s_;
  SeenWords<T> seen_;
  const int64_t lag_before_;
  const bool eq4_;
  int64_t strip_ = 0, first_ = 0;  // the strip, and the query of its row 0
};

}  // namespace
}  // namespace fovea::kernels
