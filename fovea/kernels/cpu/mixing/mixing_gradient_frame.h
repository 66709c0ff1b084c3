// The frame of one strip of the backward mixing kernels: its rows, which pairs are seen, and the
// convolutions of its maps, their transposes and the gradients of their kernels.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/mixing/mixing_convolution.h"
#include "fovea/kernels/cpu/mixing/mixing_correlation.h"
#include "fovea/kernels/cpu/mixing/mixing_gradient_products.h"

namespace fovea::kernels {
namespace {

template <class T, class P>
class GradientFrame {
 protected:
  /// Operands of products are pairs of bfloat16; maps are float32.
  static constexpr bool kPairs = P::kElements == 2;

  GradientFrame(const MixingGradientTask<T>& task, float* memory)
      : t_(task),
        m_(gradient_maps<P>(task, memory)),
        frame_(task.frame()),
        earlier_(task.earlier()),
        first_weighted_(task.earlier_before()),
        eq4_(task.equation == KernelEquation::eq4 && task.rows_before > 0) {
    for (const StepMap* map : {&m_.logits, &m_.weights, &m_.djoined, &m_.dconvolved})
      clear_rows(*map, frame_, frame_ + kRowsBehind);
    if (t_.rows_after > 0) clear_rows(m_.djoined, 0, earlier_);
    if (t_.rows_before > 0) clear_rows(m_.dconvolved, 0, first_weighted_);
    for (int64_t n = 0; n < m_.sum_floats; ++n) m_.kernel_before[n] = 0.0f;
    for (int64_t h = 0; h < t_.heads; ++h) {
      turn_round(t_.head[h].taps_before, h, t_.rows_before * t_.keys_before, m_.back_before);
      turn_round(t_.head[h].taps_after, h, t_.rows_after * t_.keys_after, m_.back_after);
      if (!kPairs) continue;
      pair_taps(t_.head[h].taps_before, h, before(), m_.back_before, m_.before_pairs);
      pair_taps(t_.head[h].taps_after, h, after(), m_.back_after, m_.after_pairs);
    }
  }

  /// Rows of a frame.
  struct Rows {
    int64_t begin = 0, end = 0;
    bool empty() const { return begin >= end; }
  };

  // One of the two convolutions of the strip.
  struct Kernel {
    int64_t rows = 0, keys = 0;
    bool masked = false;  // the result's row decides what counts (eq4)

    int64_t older() const { return (keys - 1) / 2; }
    int64_t newer() const { return keys / 2; }
    int64_t taps() const { return rows * keys; }
  };
  Kernel before() const { return {t_.rows_before, t_.keys_before, eq4_}; }
  Kernel after() const { return {t_.rows_after, t_.keys_after, false}; }

  // Rows that no step writes, with what stands beside them.
  void clear_rows(const StepMap& map, int64_t begin, int64_t end) const {
    for (int64_t n = 0; n < map.slots; ++n) {
      for (int64_t h = 0; h < t_.heads; ++h) {
        float* const rows = map.at(h, begin, n) - map.halo;
        for (int64_t c = 0; c < (end - begin) * map.row; ++c) rows[c] = 0.0f;
      }
    }
  }

  static void turn_round(const float* taps, int64_t h, int64_t count, float* to) {
    for (int64_t n = 0; n < count; ++n) to[h * count + n] = taps[count - 1 - n];
  }

  static void pair_taps(const float* taps, int64_t h, const Kernel& k, const float* turned,
                        const PairedKernels& to) {
    const int64_t words = h * k.rows * tap_words<P>(k.keys);
    write_taps<P>(taps, k.rows, k.keys, k.older(), to.taps + words);
    write_taps<P>(turned + h * k.taps(), k.rows, k.keys, k.newer(), to.turned + words);
  }

  // ---- rows and masks ----

  void begin_strip(int64_t s) {
    strip_ = s;
    first_ = s * kGradientRows - earlier_;
    first_step_ = t_.first_step[s];
    steps_ = t_.last_step[s] - first_step_;
    const int64_t key = t_.key_width.pitch, value = t_.value_width.pitch;
    for (int64_t r = 0; r < t_.padded_frame(); ++r) {
      const int64_t i = first_ + r;
      const bool real = r < frame_ && exists(i);
      m_.factor[r] = !real ? 0.0f : t_.tau != nullptr ? 1.0f / t_.tau[i] : t_.scale;
      for (int64_t h = 0; h < t_.heads; ++h) {
        const MixingGradientHead<T>& head = t_.head[h];
        Word* const q = m_.q + (h * t_.padded_frame() + r) * key;
        m_.bad_q[h * t_.padded_frame() + r] =
            !load_row(head.q + (real ? i : 0) * t_.q_row, real, t_.key_width, m_.factor[r], q);
        if (r >= frame_) continue;
        const float lse = real ? head.lse[i] : -kInfinity;
        m_.lse2[h * frame_ + r] = lse == -kInfinity ? kInfinity : lse * kLog2E;
        if (r < earlier_) continue;
        Word* const dout = m_.dout + (h * kGradientRows + r - earlier_) * value;
        m_.bad_dout[h * t_.padded_frame() + r] =
            !load_row(head.dout + (real ? i : 0) * t_.dout_row, real, t_.value_width, 1.0f, dout);
      }
    }
    pair_operands();
    for (int64_t n = 0; n < t_.heads * frame_ * kLanes; ++n) m_.delta[n] = 0.0f;
    for (int64_t n = 0; t_.renormalise && n < t_.heads * frame_ * kLanes; ++n)
      m_.row_sum[n] = m_.row_dot[n] = 0.0f;
    const int64_t part = t_.padded_frame() * t_.dq_columns;
    for (int64_t h = 0; h < t_.heads; ++h)
      for (int64_t n = 0; n < part; ++n) t_.head[h].dq[s * part + n] = 0.0f;
    see();
  }

  bool exists(int64_t i) const { return i >= 0 && i < t_.queries; }

  // Whether the row is finite. Where it is not, zeros stand for it: products take all rows of a
  // strip, and 0 times NaN would reach keys that the row does not see.
  // Pairs are the row as it is: products scale their results.
  static bool load_row(const T* from, bool real, const PackedWidth& width, float factor, Word* to) {
    const int64_t count = real ? width.elements : 0;
    bool finite = true;
    if constexpr (kPairs) {
      float zero = 0.0f;
      for (int64_t c = 0; c < count; ++c) zero += to_float(from[c]) * 0.0f;
      finite = zero == 0.0f;
      copy_row<T, P>(from, finite ? count : 0, width.pitch, to);
    } else {
      for (int64_t c = 0; c < count; ++c) to[c] = to_float(from[c]) * factor;
      for (int64_t c = count; c < width.pitch; ++c) to[c] = 0.0f;
      finite = finite_lanes(to, width.pitch);
      for (int64_t c = 0; !finite && c < count; ++c) to[c] = 0.0f;
    }
    return finite;
  }

  // q and dO of the strip as right operands.
  void pair_operands() const {
    if constexpr (kPairs) {
      const PackedWidth &key = t_.key_width, &value = t_.value_width;
      for (int64_t n = 0; n < t_.heads * t_.padded_frame() / 2; ++n)
        weave_rows(m_.q + 2 * n * key.pitch, m_.q + (2 * n + 1) * key.pitch, key.columns,
                   m_.q_rows + n * key.columns);
      for (int64_t n = 0; n < t_.heads * kGradientRows / 2; ++n)
        weave_rows(m_.dout + 2 * n * value.pitch, m_.dout + (2 * n + 1) * value.pitch,
                   value.columns, m_.dout_rows + n * value.columns);
      for (int64_t n = 0; P::kTiles && n < kLanes * key.columns; ++n)
        m_.q_rows[t_.heads * t_.padded_frame() / 2 * key.columns + n] = 0.0f;
      for (int64_t n = 0; P::kTiles && n < kLanes * value.columns; ++n)
        m_.dout_rows[t_.heads * kGradientRows / 2 * value.columns + n] = 0.0f;
    }
  }

  // Rows [begin, end) of a step as the left operand of a product over rows. Both count from the
  // first row of `rows`, as the right operand does.
  KeyOperand key_operand(const float* rows, int64_t row, Rows some,
                         [[maybe_unused]] const float* factor) const {
    if constexpr (kPairs) {
      pair_rows(rows, row, some.begin, some.end, factor, m_.step_rows, m_.woven);
      const int64_t first = some.begin / 2, end = (some.end + 1) / 2;
      if constexpr (P::kTiles) return turned_operand(first, end);
      return {m_.woven + first * kStepKeys, 1, kStepKeys, first, end - first};
    }
    return {rows + some.begin * row, 1, row, some.begin, some.end - some.begin};
  }

  // Woven rows [first, end), and zeros up to whole tiles, by key.
  KeyOperand turned_operand(int64_t first, int64_t end) const {
    const int64_t depth = (end - first + kTileRows - 1) / kTileRows * kTileRows;
    const int64_t row = turned_row(t_);
    for (int64_t n = end * kStepKeys; n < (first + depth) * kStepKeys; ++n) m_.woven[n] = 0.0f;
    for (int64_t d = 0; d < depth; d += kTileRows) {
      for (int64_t key = 0; key < kStepKeys; key += kTileRows)
        turn_tile(m_.woven + (first + d) * kStepKeys + key, kStepKeys, m_.turned + key * row + d,
                  row);
    }
    return {m_.turned, row, 1, first, depth};
  }

  static void make_bad(float* row) {
    for (int v = 0; v < kStepVectors; ++v) store(row + v * kLanes, broadcast(__builtin_nanf("")));
  }

  void see() {
    for (int64_t r = 0; r < frame_; ++r) m_.seen[r] = m_.seen[(steps_ + 1) * frame_ + r] = 0;
    for (int64_t n = 0; n < steps_; ++n) {
      Rows live{frame_, 0};
      for (int64_t r = 0; r < frame_; ++r) {
        const uint64_t bits = exists(first_ + r) ? compared(first_ + r, key_of(n)) : 0;
        m_.seen[(n + 1) * frame_ + r] = bits;
        if (bits == 0) continue;
        live.begin = live.begin < r ? live.begin : r;
        live.end = r + 1;
      }
      m_.live_begin[n] = static_cast<int32_t>(live.begin);
      m_.live_end[n] = static_cast<int32_t>(live.end);
    }
  }

  uint64_t compared(int64_t i, int64_t key) const {
    const LanePlaces query = place_of(t_.query_places, i);
    uint64_t bits = 0;
    for (int v = 0; v < kStepVectors; ++v) {
      const LanePlaces keys = places_at(t_.key_places, key + v * kLanes);
      bits |= bits_of(seen_lanes(t_.rule, query, keys)) << (v * kLanes);
    }
    return bits;
  }

  int64_t key_of(int64_t n) const { return (first_step_ + n) * kStepKeys; }
  uint64_t seen(int64_t r, int64_t n) const { return m_.seen[(n + 1) * frame_ + r]; }
  Rows live(int64_t n, int64_t first) const {
    const int64_t begin = m_.live_begin[n];
    return {begin > first ? begin : first, m_.live_end[n]};
  }
  // Rows of logits that count for some weight: with eq4 those before the rows that see them, too.
  Rows live_logits(int64_t n) const {
    Rows rows = live(n, 0);
    if (eq4_) rows.begin = rows.begin > first_weighted_ ? rows.begin - first_weighted_ : 0;
    return rows;
  }

  // The last `count` rows of the frame at most: whole registers of rows end with it.
  int64_t fitted(int64_t r, int64_t count) const {
    return r + count <= frame_ ? r : frame_ - count;
  }

  void hide(float* row, uint64_t bits) const {
    if (bits == kAllSeen) return;
    for (int v = 0; v < kStepVectors; ++v) {
      float* const at = row + v * kLanes;
      store(at, choose(lanes_of(bits, v), load(at), Float{}));
    }
  }

  static void clear_row(float* row) {
    for (int v = 0; v < kStepVectors; ++v) store(row + v * kLanes, Float{});
  }
  // Rows [first, frame) but for `kept`.
  void clear_others(const StepMap& map, int64_t n, int64_t first, Rows kept) const {
    for (int64_t h = 0; h < t_.heads; ++h) {
      for (int64_t r = first; r < frame_; ++r)
        if (r < kept.begin || r >= kept.end) clear_row(map.at(h, r, n));
    }
  }

  // The keys at the ends of a step beside the steps next to it, zeros where there is none.
  void spread(const StepMap& map, int64_t n) const {
    for (int64_t h = 0; h < t_.heads; ++h) {
      for (int64_t r = 0; r < frame_; ++r) {
        float* const row = map.at(h, r, n);
        if (n == 0) copy_halo(nullptr, row - kKeyHalo);
        if (n > 0) copy_halo(row, map.at(h, r, n - 1) + kStepKeys);
        if (n + 1 < steps_) copy_halo(row + kStepKeys - kKeyHalo, map.at(h, r, n + 1) - kKeyHalo);
        if (n + 1 == steps_) copy_halo(nullptr, row + kStepKeys);
      }
    }
  }
  static FOVEA_INLINE void copy_halo(const float* from, float* to) {
#pragma GCC unroll 8
    for (int64_t c = 0; c < kKeyHalo; ++c) to[c] = from != nullptr ? from[c] : 0.0f;
  }

  // ---- convolutions ----

  // Kernel rows that do not count for query i, because they stand in another document.
  int64_t rows_left_out(int64_t i, const Kernel& k) const {
    if (t_.first_row == nullptr) return 0;
    const int64_t oldest = i - (k.rows - 1), first = t_.first_row[i];
    return first > oldest && first > 0 ? first - oldest : 0;
  }
  // Whether results [begin, end) of step n read all taps of all rows.
  bool whole(Rows r, int64_t n, const Kernel& k) const {
    if (t_.first_row != nullptr) {
      const int64_t last = first_ + r.end - 1;
      const int64_t first = t_.first_row[last < t_.queries ? last : t_.queries - 1];
      if (first > 0 && first > first_ + r.begin - (k.rows - 1)) return false;
    }
    for (int64_t row = r.begin; k.masked && row < r.end; ++row) {
      if (exists(first_ + row) && (seen(row, n) != kAllSeen || seen(row, n - 1) >> 56 != 0xFF ||
                                   (seen(row, n + 1) & 0xFF) != 0xFF))
        return false;
    }
    return true;
  }

  // Kernel rows of one result, from the first that counts: where their keys begin, at the oldest
  // tap of the step's first key.
  struct Windows {
    int64_t left_out = 0;
    const float* row[kMostKernelRows];
  };
  Windows windows_of(const StepMap& x, int64_t h, int64_t r, int64_t n, const Kernel& k) const {
    Windows w{.left_out = rows_left_out(first_ + r, k), .row = {}};
    for (int64_t a = w.left_out; a < k.rows; ++a) {
      const float* from = x.at(h, r - (k.rows - 1) + a, n) - kKeyHalo;
      if (k.masked) {
        float* const to = m_.windows + a * kWindowPitch;
        for (int64_t c = 0; c < kWindowPitch; ++c) to[c] = window_bit(r, n, c) ? from[c] : 0.0f;
        from = to;
      }
      w.row[a] = from + kKeyHalo - k.older();
    }
    return w;
  }
  bool window_bit(int64_t r, int64_t n, int64_t c) const {
    const int64_t key = c - kKeyHalo;
    const int64_t step = key < 0 ? n - 1 : key < kStepKeys ? n : n + 1;
    return (seen(r, step) >> (key & (kStepKeys - 1)) & 1) != 0;
  }

  // Whether a convolution multiplies pairs, of numbers and taps that are rounded: as in the forward
  // pass, so that weights fit its lse.
  static bool rounds(const Kernel& k) { return kPairs && !k.masked; }

  // Rows of a map as bfloat16, with what stands beside and behind them.
  void halve([[maybe_unused]] const StepMap& x, [[maybe_unused]] int64_t h,
             [[maybe_unused]] int64_t n, [[maybe_unused]] uint16_t* to) const {
    if constexpr (kPairs) {
      constexpr int64_t kWhole = kWindowPitch / kPanel * kPanel;
      static_assert(kWindowPitch == kWhole || kWindowPitch - kWhole == kLanes);
      for (int64_t r = 0; r < frame_ + kRowsBehind; ++r) {
        const float* const from = x.at(h, r, n) - kKeyHalo;
        Word* const words = reinterpret_cast<Word*>(to + r * kHalfPitch);
        for (int64_t c = 0; c < kWhole; c += kPanel)
          P::store_row(words + c / 2, load(from + c), load(from + c + kLanes));
        if constexpr (kWindowPitch > kWhole) P::store_half(words + kWhole / 2, load(from + kWhole));
      }
    }
  }

  // Results that are made together.
  static int64_t rows_together(bool pairs) {
    return P::kTiles && pairs ? kLanes : kConvolutionRows;
  }

  // rows_together() results from row `row` of x on, whose keys begin `shift` keys beside theirs.
  FOVEA_INLINE void convolve_whole(const StepMap& x, int64_t h, int64_t row, int64_t n,
                                   const Taps& taps, [[maybe_unused]] int64_t shift, bool pairs,
                                   float* y) const {
    if constexpr (P::kTiles) {
      if (pairs) {
        const Word* const first = reinterpret_cast<const Word*>(m_.halves + row * kHalfPitch);
        return convolve_bands(
            taps, kHalfPitch / 2,
            [&](int64_t a) FOVEA_ALWAYS { return first + a * (kHalfPitch / 2); }, y);
      }
    } else if constexpr (kPairs) {
      if (pairs) {
        // A word of the window holds a number and the one before it.
        const int64_t first = row * kHalfPitch + kKeyHalo + shift + taps.first - 1;
        return convolve_tiles<P>(HalfRows{m_.halves + first}, taps, y);
      }
    }
    convolve_tiles<Single>(WordRows<Single>{x.at(h, row, n) + shift + taps.first}, taps, y);
  }

  // y[r] = sum of taps x rows r - (cq - 1) ... r.
  void convolve(const StepMap& x, const StepMap& y, int64_t n, Rows rows, const Kernel& k,
                bool is_before) const {
    if (rows.empty()) return;
    const bool pairs = rounds(k);
    for (int64_t h = 0; h < t_.heads; ++h) {
      const MixingGradientHead<T>& head = t_.head[h];
      const float* const single = is_before ? head.taps_before : head.taps_after;
      const Word* const words = is_before ? m_.before_pairs.taps : m_.after_pairs.taps;
      const Taps taps = own_taps(single, words, h, k, pairs);
      const int64_t count = rows_together(pairs);
      if (pairs) halve(x, h, n, m_.halves);
      for (int64_t r = rows.begin; r < rows.end; r += count) {
        const int64_t at = fitted(r, count);
        const auto some = [&](int64_t row) {
          convolve_some(x, h, row, n, k, single, y.at(h, row, n));
        };
        if (whole({at, at + count}, n, k)) {
          convolve_whole(x, h, at - (k.rows - 1), n, taps, 0, pairs, y.at(h, at, n));
          redo_rows(pairs, y.at(h, at, n), at, some);
          continue;
        }
        for (int64_t row = at; row < at + count; ++row) some(row);
      }
    }
  }

  // Rows of results from row `at` on that tiles have to leave to redo(row).
  template <class Redo>
  static void redo_rows([[maybe_unused]] bool pairs, [[maybe_unused]] const float* results,
                        [[maybe_unused]] int64_t at, [[maybe_unused]] const Redo& redo) {
    if constexpr (P::kTiles)
      if (pairs) each_row_not_finite(results, [&](int64_t n) { redo(at + n); });
  }

  // The taps of head h; `single`: in float32.
  static Taps own_taps(const float* single, const Word* words, int64_t h, const Kernel& k,
                       bool pairs) {
    if (!pairs) return single_taps(single, k.rows, k.keys);
    return taps_of<P>(words + h * k.rows * tap_words<P>(k.keys), k.rows, k.keys);
  }

  void convolve_some(const StepMap& x, int64_t h, int64_t r, int64_t n, const Kernel& k,
                     const float* taps, float* y) const {
    if (!exists(first_ + r)) return clear_row(y);
    const Windows w = windows_of(x, h, r, n, k);
    const auto number = [pairs = rounds(k)](Float some)
                            FOVEA_ALWAYS { return pairs ? as_bfloat16(some) : some; };
    for (int v = 0; v < kStepVectors; ++v) {
      Float sum{};
      for (int64_t a = w.left_out; a < k.rows; ++a) {
        for (int64_t b = 0; b < k.keys; ++b)
          sum = number(broadcast(taps[a * k.keys + b])) * number(load(w.row[a] + b + v * kLanes)) +
                sum;
      }
      store(y + v * kLanes, sum);
    }
  }

  // dx[r] = sum of taps turned round x rows r ... r + cq - 1 of dy.
  void convolve_back(const StepMap& dy, const StepMap& dx, int64_t n, Rows rows, const Kernel& k,
                     const float* turned, const Word* words) const {
    if (rows.empty()) return;
    const bool pairs = rounds(k);
    for (int64_t h = 0; h < t_.heads; ++h) {
      const float* const single = turned + h * k.taps();
      const Taps taps = own_taps(single, words, h, k, pairs);
      const int64_t count = rows_together(pairs);
      if (pairs) halve(dy, h, n, m_.halves);
      for (int64_t r = rows.begin; r < rows.end; r += count) {
        const int64_t at = fitted(r, count);
        const auto some = [&](int64_t row) {
          convolve_some_back(dy, h, row, n, k, single, dx.at(h, row, n));
        };
        // Results that these rows are part of: all must read all of them.
        const int64_t last = at + count + k.rows - 1;
        if (whole_back({at, last < frame_ ? last : frame_}, n, k)) {
          convolve_whole(dy, h, at, n, taps, k.older() - k.newer(), pairs, dx.at(h, at, n));
          redo_rows(pairs, dx.at(h, at, n), at, some);
          continue;
        }
        for (int64_t row = at; row < at + count; ++row) some(row);
      }
    }
  }
  bool whole_back(Rows results, int64_t n, const Kernel& k) const {
    if (t_.first_row != nullptr) {
      const int64_t last = first_ + results.end - 1;
      const int64_t first = t_.first_row[last < t_.queries ? last : t_.queries - 1];
      if (first > 0 && first > first_ + results.begin) return false;
    }
    for (int64_t row = results.begin; k.masked && row < results.end; ++row) {
      if (exists(first_ + row) && seen(row, n) != kAllSeen) return false;
    }
    return true;
  }

  void convolve_some_back(const StepMap& dy, int64_t h, int64_t r, int64_t n, const Kernel& k,
                          const float* turned, float* dx) const {
    clear_row(dx);
    if (!exists(first_ + r)) return;
    for (int64_t a = 0; a < k.rows && r + a < frame_ && exists(first_ + r + a); ++a) {
      if (a > 0 && t_.first_row != nullptr && t_.first_row[first_ + r + a] > first_ + r) return;
      const float* const row = dy.at(h, r + a, n) - k.newer();
      for (int v = 0; v < kStepVectors; ++v) {
        Float sum{};
        for (int64_t b = 0; b < k.keys; ++b)
          sum = broadcast(turned[a * k.keys + b]) * load(row + b + v * kLanes) + sum;
        if (k.masked) sum = choose(lanes_of(seen(r + a, n), v), sum, Float{});
        store(dx + v * kLanes, load(dx + v * kLanes) + sum);
      }
    }
  }

  // Adds dy[r] x rows r - (cq - 1) ... r to the sums of the kernel.
  void correlate(const StepMap& dy, const StepMap& x, int64_t n, Rows rows, const Kernel& k,
                 float* sums) const {
    if (rows.empty()) return;
    const bool pairs = rounds(k);
    for (int64_t h = 0; h < t_.heads; ++h) {
      float* const to = sums + h * k.taps() * kLanes;
      if (pairs) {
        halve(dy, h, n, m_.halves);
        halve(x, h, n, m_.other_halves);
      }
      for (int64_t r = rows.begin; r < rows.end; r += kCorrelatedRows) {
        const int64_t end = r + kCorrelatedRows < rows.end ? r + kCorrelatedRows : rows.end;
        if (whole({r, end}, n, k)) {
          correlate_whole(dy, x, h, r, n, end - r, k, pairs, to);
          continue;
        }
        for (int64_t row = r; row < end; ++row) {
          if (!exists(first_ + row)) continue;
          const Windows w = windows_of(x, h, row, n, k);
          correlate_row(dy.at(h, row, n), w.row + w.left_out, k.rows - w.left_out, k.keys,
                        to + w.left_out * k.keys * kLanes);
        }
      }
    }
  }

  FOVEA_INLINE void correlate_whole(const StepMap& dy, const StepMap& x, int64_t h, int64_t r,
                                    int64_t n, int64_t rows, const Kernel& k, bool pairs,
                                    float* sums) const {
    const int64_t oldest = r - (k.rows - 1);
    if constexpr (kPairs) {
      if (pairs) {
        const NumberRows<Pair> left{m_.halves + r * kHalfPitch + kKeyHalo, kHalfPitch},
            right{m_.other_halves + oldest * kHalfPitch + kKeyHalo - k.older(), kHalfPitch};
        return correlate_rows(k.rows, left, right, rows, k.keys, sums);
      }
    }
    correlate_rows<Single>(k.rows, {dy.at(h, r, n), dy.row},
                           {x.at(h, oldest, n) - k.older(), x.row}, rows, k.keys, sums);
  }

  const MixingGradientTask<T>& t_;
  const GradientMaps m_;
  const int64_t frame_, earlier_, first_weighted_;
  const bool eq4_;
  int64_t strip_ = 0, first_ = 0;  // the strip, and the query of row 0 of its frame
  int64_t first_step_ = 0, steps_ = 0;
};

}  // namespace
}  // namespace fovea::kernels
