// The forward pass over strips of queries (docs/kernels/mixing.md).
//
//   pass 1, step by step:  S = Q K^T -> [window -> convolution] -> [mix] -> E = 2^(x - m), kept
//   pass 2, step by step:  E / l -> [window -> convolution] -> [mix] -> O += P V
//
// Each convolution reads rows that the strip before handed on, and keys of the past alone: its
// results lag by kKernelLag keys. Softmax needs no pass for the maximum: a row's reference m is its
// largest logit in the first step in which it sees a key; a row whose sum leaves the safe range
// gets its exact maximum, and pass 1 runs again, in which other rows repeat their bits. Where E of
// all keys would take too much memory, pass 2 computes each step of it again.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/attention_pack.h"
#include "fovea/kernels/cpu/mixing_convolution.h"
#include "fovea/kernels/cpu/mixing_scratch.h"
#include "fovea/kernels/cpu/mixing_terms.h"

namespace fovea::kernels {
namespace {

constexpr float kSafeTotal = 0x1p64f;     // beyond it a sum or O could overflow
constexpr float kSmallestRowSum = 1e-6f;  // of renormalised rows (M-9)
constexpr int64_t kWarmUpRows = 24;       // the rows that a first strip's neighbour needs, 2 x 7
static_assert(2 * (kMostKernelRows - 1) + kConvolutionRows <= kWarmUpRows);

template <class T, class P>
class StripWalk {
 public:
  StripWalk(const MixingStrips<T>& task, float* memory)
      : t_(task),
        s_(task, kPairs, memory),
        seen_(task, s_.seen),
        terms_(task.terms),
        lag_before_(task.rows_before > 0 ? kKernelLag : 0),
        lag_(lag_before_ + (task.rows_after > 0 ? kKernelLag : 0)),
        eq4_(task.rows_before > 0 && task.equation == KernelEquation::eq4) {}

  void run() {
    if (kPairs) pair_taps();
    forget(s_.before);
    forget(s_.after);
    const bool joined = t_.rows_before > 1 || t_.rows_after > 1;
    if (joined && t_.strip_begin > 0) walk(t_.strip_begin - 1, true);
    for (int64_t strip = t_.strip_begin; strip < t_.strip_end; ++strip) walk(strip, false);
  }

 private:
  /// Operands are pairs of bfloat16; so are windows, except those of eq4, which hides single keys.
  static constexpr bool kPairs = P::kElements == 2;
  static constexpr int64_t kStepWords = kStepKeys / P::kElements;

  void pair_taps() const {
    for (int64_t h = 0; h < t_.heads; ++h) {
      write_paired_taps(t_.head[h].taps_before, t_.rows_before, t_.keys_before,
                        paired_taps(s_.taps_before, h, t_.rows_before, t_.keys_before));
      write_paired_taps(t_.head[h].taps_after, t_.rows_after, t_.keys_after,
                        paired_taps(s_.taps_after, h, t_.rows_after, t_.keys_after));
    }
  }
  static Word* paired_taps(Word* all, int64_t h, int64_t rows, int64_t keys) {
    return all + h * rows * ((keys + 1) / 2);
  }

  static void forget(const Carry& carry) {
    for (int64_t n = 0; n < 2 * carry.blocks; ++n) carry.strip[n] = -2;
  }

  // One strip; `warm_up`: only what it hands on, from its last rows.
  void walk(int64_t strip, bool warm_up) {
    strip_ = strip;
    first_ = strip * kStripRows;
    live_begin_ = warm_up ? kStripRows - kWarmUpRows : 0;
    rows_ = t_.queries - first_ < kStripRows ? t_.queries - first_ : kStripRows;
    seen_.fill(strip, live_begin_);
    load_queries();
    start_rows();
    logits(Rows::weights);
    if (find_unsafe_rows()) {
      logits(Rows::maxima);
      reset_sums();
      logits(Rows::weights);
    }
    finish_rows(warm_up);
    if (warm_up) return hand_on_weights();
    if (t_.renormalise) {
      sum_rows();
      find_row_factors();
    }
    prepare_mix();
    add_values();
    write();
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

  void start_rows() {
    for (int64_t n = 0; n < t_.heads * kStripRows; ++n) {
      s_.references[n] = 0.0f;
      fresh_[n % kStripRows] = true;
    }
    reset_sums();
  }
  void reset_sums() {
    for (int64_t n = 0; n < t_.heads * kStripRows * kLanes; ++n) s_.sums[n] = 0.0f;
  }

  // ------------------------------------------------------------------ pass 1
  enum class Rows { weights, maxima };

  void logits(Rows what) {
    counts_ = true;
    for (int64_t n = 0; n < seen_.count(); ++n) logits(n, what);
    counts_ = false;
  }
  void logits(int64_t n, Rows what) {
    seen_.lagging(n, lag_before_, s_.seen_weights);
    for (int64_t h = 0; h < t_.heads; ++h) {
      if (t_.rows_before > 0) {
        fill_window(h, n);
        convolve_logits(h, n);
      } else {
        products(h, n, 0, seen_.of(n), s_.rows + h * kStripPitch, kStepKeys);
      }
    }
    for (int64_t r = 0; r < kStripRows; ++r) weigh_row(n, r, what);
  }
  // The exponentials of step n of all heads. Pass 2 asks for them in order.
  float* weights_of(int64_t n) const {
    return s_.weights + (s_.keeps_weights ? n * t_.heads * kStripPitch : 0);
  }
  void recall(int64_t n) {
    if (!s_.keeps_weights) logits(n, Rows::weights);
  }
  void convolve_logits(int64_t h, int64_t n) {
    const int64_t rows = t_.rows_before, keys = t_.keys_before;
    float* const to = s_.rows + h * kStripPitch;
    if (eq4_)
      convolve<Single>(single_taps(t_.head[h].taps_before, rows, keys), s_.seen_weights, n, to);
    else if constexpr (kPairs)
      convolve<P>(paired(paired_taps(s_.taps_before, h, rows, keys), rows, keys), s_.seen_weights,
                  -1, to);
    else
      convolve<P>(single_taps(t_.head[h].taps_before, rows, keys), s_.seen_weights, -1, to);
  }

  // History, rows of the strip before, and the logits of this step, masked unless eq4.
  void fill_window(int64_t h, int64_t n) {
    const int64_t rows = kHaloRows + kStripRows, earlier = t_.rows_before - 1;
    Word* const history = s_.history_before + h * rows * kHistory;
    load_history(history, n);
    float* const strip = (eq4_ ? s_.window : s_.numbers) + kHaloRows * kWindowPitch + kHistory;
    if (eq4_) {
      products(h, n, -kHaloRows, nullptr, strip - kHaloRows * kWindowPitch, kWindowPitch);
      products(h, n, 0, nullptr, strip, kWindowPitch);
    } else {
      load_halo(s_.before, h, n, earlier);
      products(h, n, 0, seen_.of(n), strip, kWindowPitch);
      if (kPairs) pair_window();
      if (earlier > 0) hand_on(s_.before, h, n, earlier);
    }
    save_history(history);
  }

  void load_history(const Word* history, int64_t n) {
    const bool linked = seen_.follows(n);
    for (int64_t r = 0; r < kHaloRows + kStripRows; ++r) {
      for (int64_t c = 0; c < kHistory; c += kLanes)
        store(s_.window + r * kWindowPitch + c,
              linked ? load(history + r * kHistory + c) : Float{});
    }
  }
  void save_history(Word* history) const {
    for (int64_t r = 0; r < kHaloRows + kStripRows; ++r) {
      for (int64_t c = 0; c < kHistory; c += kLanes)
        store(history + r * kHistory + c, load(s_.window + r * kWindowPitch + kStepKeys + c));
    }
  }

  // The strip's rows of the window in pairs. The key before a step's first is the last of history.
  void pair_window() {
    for (int64_t r = kHaloRows; r < kHaloRows + kStripRows; ++r) {
      Word* const words = s_.window + r * kWindowPitch + kHistory;
      float* const numbers = s_.numbers + r * kWindowPitch + kHistory;
      numbers[-1] = upper_half(words[-1]);
#pragma GCC unroll 4
      for (int v = 0; v < kStepVectors; ++v) {
        const float* const at = numbers + v * kLanes;
        store(words + v * kLanes, word_of(load(at - 1), load(at)));
      }
    }
  }

  void load_halo(const Carry& carry, int64_t h, int64_t n, int64_t earlier) {
    const float* const rows = earlier > 0 ? carry.before(strip_, seen_.step(n), h) : nullptr;
    for (int64_t r = 0; r < earlier; ++r) {
      float* const to = s_.window + (kHaloRows - earlier + r) * kWindowPitch + kHistory;
      for (int64_t c = 0; c < kStepKeys; c += kLanes)
        store(to + c, rows != nullptr ? load(rows + r * kStepKeys + c) : Float{});
    }
  }
  void hand_on(const Carry& carry, int64_t h, int64_t n, int64_t earlier) const {
    float* const rows = carry.write(strip_, seen_.step(n), h);
    for (int64_t r = 0; r < earlier; ++r) {
      const float* const from =
          s_.window + (kHaloRows + kStripRows - earlier + r) * kWindowPitch + kHistory;
      for (int64_t c = 0; c < kStepKeys; c += kLanes)
        store(rows + r * kStepKeys + c, load(from + c));
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

  // What some row of a tile sees.
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
    clear(x);
    multiply_add<P>(x, t_.key_width.words, query(h, row), t_.key_width.pitch, 1, keys, kPanel);
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

  // All rows of results; those that `seen` has no key of are zeros. eq4 at step n >= 0: pairs count
  // that the row of the result sees.
  template <class C>
  void convolve(const Taps& k, const uint64_t* seen, int64_t n, float* to) {
    const Word* const window = s_.window + kHaloRows * kWindowPitch + kHistory;
    for (int64_t r = 0; r < kStripRows; r += kConvolutionRows) {
      uint64_t some = 0;
      for (int64_t a = 0; a < kConvolutionRows; ++a) some |= seen[r + a];
      float* const out = to + r * kStepKeys;
      if (some == 0) {
        for (int64_t c = 0; c < kConvolutionRows * kStepKeys; c += kLanes) store(out + c, Float{});
      } else if (one_document(r, k.rows) && (n < 0 || sees_all(n, r))) {
        convolve_rows<C>(window + r * kWindowPitch, k, out);
      } else {
        for (int64_t a = r; a < r + kConvolutionRows; ++a)
          convolve_alone<C>(window + a * kWindowPitch, k, n, a, to + a * kStepKeys);
      }
    }
  }

  // Rows r ... r + kConvolutionRows - 1 and all rows that they read stand in one document, or do
  // not exist and are zeros.
  bool one_document(int64_t r, int64_t kernel_rows) const {
    if (t_.first_row == nullptr) return true;
    const int64_t begin = first_ + r - (kernel_rows - 1), end = first_ + r + kConvolutionRows - 1;
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

  // Mixed logits of one row to exponentials (or to the row's maxima), for all heads.
  FOVEA_INLINE void weigh_row(int64_t n, int64_t r, Rows what) {
    const uint64_t word = s_.seen_weights[r];
    float* const weights = weights_of(n) + r * kStepKeys;
    if (word == 0) {
      if (what == Rows::weights) {
        for (int64_t h = 0; h < t_.heads; ++h) {
          for (int64_t c = 0; c < kStepKeys; c += kLanes)
            store(weights + h * kStripPitch + c, Float{});
        }
      }
      return;
    }
    HeadStep<float> x{s_.rows + r * kStepKeys, kStripPitch};
    if (t_.mix_before != nullptr) {
      const HeadStep<float> mixed{s_.mixed, kMixPitch};
      mix_heads({x.row, x.head}, t_.mix_before, t_.heads, t_.width_before, mixed);
      x = mixed;
    }
    if (terms_.active()) {
      terms_.template begin<P::kExpDegree>(first_ + r, seen_.step(n) * kStepKeys - lag_before_);
      const auto rule_of = [this](int64_t h) -> const HeadRule& { return t_.head[h].rule; };
      if (terms_.change_logits()) terms_.to_logits({x.row, x.head}, t_.heads, rule_of, x);
    }
    if (what == Rows::maxima) {
      for (int64_t h = 0; h < t_.heads; ++h) raise_reference(h * kStripRows + r, x.of(h), word);
      return;
    }
    if (fresh_[r]) set_references(r, {x.row, x.head}, word);
    for (int64_t h = 0; h < t_.heads; ++h) {
      const int64_t row = h * kStripRows + r;
      float* const to = weights + h * kStripPitch;
      if (terms_.weigh())
        gated_exponentials(row, x.of(h), word, to);
      else
        exponentials(row, x.of(h), word, to);
    }
  }

  static FOVEA_INLINE float largest_seen(const float* x, uint64_t word) {
    Float top = broadcast(-kInfinity);
    for (int v = 0; v < kStepVectors; ++v)
      top = larger(top, choose(lanes_of(word, v), load(x + v * kLanes), broadcast(-kInfinity)));
    return largest(top) * kLog2E;
  }

  // The first step in which a row sees a key is the same for all heads.
  void set_references(int64_t r, HeadStep<const float> x, uint64_t word) {
    fresh_[r] = false;
    for (int64_t h = 0; h < t_.heads; ++h) {
      const float top = largest_seen(x.of(h), word), sink = t_.head[h].sink * kLog2E;
      const float reference = top > sink ? top : sink;
      s_.references[h * kStripRows + r] = reference > -kInfinity ? reference : 0.0f;
    }
  }
  void raise_reference(int64_t row, const float* x, uint64_t word) {
    if (!(s_.factors[row] > 0.0f)) return;  // it is safe
    const float top = largest_seen(x, word);
    if (top > s_.references[row]) s_.references[row] = top;
  }

  FOVEA_INLINE void exponentials(int64_t row, const float* x, uint64_t word, float* to) {
    const Float m = broadcast(s_.references[row]), factor = broadcast(kLog2E);
    Float total = load(s_.sums + row * kLanes);
    if (word == kAllSeen) {
#pragma GCC unroll 4
      for (int v = 0; v < kStepVectors; ++v) {
        const Float p = exp2_lanes<P::kExpDegree>(load(x + v * kLanes) * factor - m);
        store(to + v * kLanes, p);
        total = total + p;
      }
    } else {
      for (int v = 0; v < kStepVectors; ++v) {
        const Float p =
            exp2_seen<P::kExpDegree>(lanes_of(word, v), load(x + v * kLanes) * factor - m);
        store(to + v * kLanes, p);
        total = total + p;
      }
    }
    if (counts_) store(s_.sums + row * kLanes, total);
  }

  void gated_exponentials(int64_t row, const float* x, uint64_t word, float* to) {
    const Float m = broadcast(s_.references[row]), factor = broadcast(kLog2E);
    Float total = load(s_.sums + row * kLanes);
    for (int v = 0; v < kStepVectors; ++v) {
      const Lanes seen = lanes_of(word, v);
      const Float e = exp2_seen<P::kExpDegree>(seen, load(x + v * kLanes) * factor - m);
      const Float p = choose(seen, e * terms_.factor(v), Float{});
      store(to + v * kLanes, p);
      total = total + p;
    }
    if (counts_) store(s_.sums + row * kLanes, total);
  }

  // Their factor is 1 until pass 1 has run again: a note for raise_reference().
  bool find_unsafe_rows() {
    bool found = false;
    for (int64_t row = 0; row < t_.heads * kStripRows; ++row) {
      const bool unsafe = sum(load(s_.sums + row * kLanes)) >= kSafeTotal;
      s_.factors[row] = unsafe ? 1.0f : 0.0f;
      found |= unsafe;
    }
    return found;
  }

  // Totals with the sink, lse and 1 / l.
  void finish_rows(bool warm_up) {
    for (int64_t h = 0; h < t_.heads; ++h) {
      const MixingHead<T>& head = t_.head[h];
      for (int64_t r = 0; r < kStripRows; ++r) {
        const int64_t row = h * kStripRows + r;
        const float m = s_.references[row];
        float total = sum(load(s_.sums + row * kLanes)), lse = head.sink;
        if (!fresh_[r]) {
          if (head.sink > -kInfinity) total += __builtin_exp2f(head.sink * kLog2E - m);
          lse = total == 0.0f ? -kInfinity : total != total ? total : (m + fast_log2(total)) * kLn2;
        }
        s_.factors[row] = fresh_[r] || total == 0.0f ? 0.0f : 1.0f / total;
        if (!warm_up && r < rows_ && head.lse != nullptr) head.lse[first_ + r] = lse;
      }
    }
  }

  // ------------------------------------------------------------------ pass 2

  // Weights of a step in the window; their history and their last rows go on.
  void fill_weights(int64_t h, int64_t n) {
    const int64_t rows = kHaloRows + kStripRows, earlier = t_.rows_after - 1;
    Word* const history = s_.history_after + h * rows * kHistory;
    load_history(history, n);
    load_halo(s_.after, h, n, earlier);
    const float* const weights = weights_of(n) + h * kStripPitch;
    for (int64_t r = 0; r < kStripRows; ++r) {
      const Float factor = broadcast(s_.factors[h * kStripRows + r]);
      float* const to = s_.numbers + (kHaloRows + r) * kWindowPitch + kHistory;
      const float* const from = weights + r * kStepKeys;
      const uint64_t word = s_.seen_weights[r];
#pragma GCC unroll 4
      for (int v = 0; v < kStepVectors; ++v) {
        const Float p = load(from + v * kLanes) * factor;
        store(to + v * kLanes, word == kAllSeen ? p : choose(lanes_of(word, v), p, Float{}));
      }
    }
    if (kPairs) pair_window();
    if (earlier > 0) hand_on(s_.after, h, n, earlier);
    save_history(history);
  }
  Taps taps_after(int64_t h) const {
    const int64_t rows = t_.rows_after, keys = t_.keys_after;
    return kPairs ? paired(paired_taps(s_.taps_after, h, rows, keys), rows, keys)
                  : single_taps(t_.head[h].taps_after, rows, keys);
  }

  void hand_on_weights() {
    if (t_.rows_after < 2) return;
    for (int64_t n = 0; n < seen_.count(); ++n) {
      recall(n);
      seen_.lagging(n, lag_before_, s_.seen_weights);
      for (int64_t h = 0; h < t_.heads; ++h) fill_weights(h, n);
    }
  }

  // Convolved weights of a step in `rows`, 0 where not seen.
  void convolved_weights(int64_t n) {
    seen_.lagging(n, lag_before_, s_.seen_weights);
    for (int64_t h = 0; h < t_.heads; ++h) {
      fill_weights(h, n);
      float* const rows = s_.rows + h * kStripPitch;
      convolve<P>(taps_after(h), s_.seen_results, -1, rows);
      for (int64_t r = 0; r < kStripRows; ++r) {
        const uint64_t word = s_.seen_results[r];
        float* const row = rows + r * kStepKeys;
        for (int v = 0; word != kAllSeen && v < kStepVectors; ++v)
          store(row + v * kLanes, choose(lanes_of(word, v), load(row + v * kLanes), Float{}));
      }
    }
  }

  // Sums of convolved weights of each row (M-9).
  void sum_rows() {
    for (int64_t n = 0; n < t_.heads * kStripRows * kLanes; ++n) s_.row_sums[n] = 0.0f;
    for (int64_t n = 0; n < seen_.count(); ++n) {
      seen_.lagging(n, lag_, s_.seen_results);
      recall(n);
      convolved_weights(n);
      for (int64_t row = 0; row < t_.heads * kStripRows; ++row) {
        const float* const x =
            s_.rows + row / kStripRows * kStripPitch + row % kStripRows * kStepKeys;
        Float total = load(s_.row_sums + row * kLanes);
        for (int v = 0; v < kStepVectors; ++v) total = total + load(x + v * kLanes);
        store(s_.row_sums + row * kLanes, total);
      }
    }
  }
  // From here on factors are those of convolved weights. The window needs 1 / l once more, so they
  // stand in place of the sums.
  void find_row_factors() {
    for (int64_t row = 0; row < t_.heads * kStripRows; ++row) {
      const int64_t h = row / kStripRows, r = row % kStripRows;
      const float total = sum(load(s_.row_sums + row * kLanes));
      const float n =
          total > kSmallestRowSum || total < -kSmallestRowSum || total != total ? total : 1.0f;
      s_.sums[row] = 1.0f / n;
      if (r < rows_ && t_.head[h].row_sums != nullptr) t_.head[h].row_sums[first_ + r] = n;
    }
  }

  // What a row of the last sum over keys is multiplied with: 1 / l where no convolution has used
  // it, 1 / n of renormalised rows, else 1.
  float row_factor(int64_t row) const {
    if (t_.rows_after == 0) return s_.factors[row];
    return t_.renormalise ? s_.sums[row] : 1.0f;
  }
  bool has_row_factors() const { return t_.rows_after == 0 || t_.renormalise; }

  // Row factors join the matrices of the mix: W[o, c] factor[c], a matrix a row.
  void prepare_mix() {
    if (t_.mix_after == nullptr || !has_row_factors()) return;
    const int64_t width = t_.width_after;
    for (int64_t r = 0; r < kStripRows; ++r) {
      float* const to = s_.mix_after + r * t_.heads * width;
      for (int64_t o = 0; o < t_.heads; ++o) {
        for (int64_t c = 0; c < width; ++c) {
          const int64_t head = o / width * width + c;
          to[o * width + c] = t_.mix_after[o * width + c] * row_factor(head * kStripRows + r);
        }
      }
    }
  }
  const float* mix_of_row(int64_t r) const {
    return has_row_factors() ? s_.mix_after + r * t_.heads * t_.width_after : t_.mix_after;
  }

  void add_values() {
    for (int64_t n = 0; n < t_.heads * kStripRows * t_.value_width.columns; ++n) s_.out[n] = 0.0f;
    for (int64_t n = 0; n < seen_.count(); ++n) {
      seen_.lagging(n, lag_, s_.seen_results);
      recall(n);
      HeadStep<const float> rows{weights_of(n), kStripPitch};
      if (t_.rows_after > 0) {
        convolved_weights(n);
        rows = {s_.rows, kStripPitch};
      }
      for (int64_t r = 0; r < kStripRows; r += kMixRows) add_values_of(n, r, rows);
    }
  }

  // Rows [first, first + kMixRows) of a step.
  void add_values_of(int64_t n, int64_t first, HeadStep<const float> rows) {
    HeadStep<const float> p{rows.row + first * kStepKeys, rows.head};
    if (t_.mix_after != nullptr || t_.drops) {
      const HeadStep<float> to{s_.mixed, kMixPitch};
      for (int64_t r = 0; r < kMixRows; ++r)
        mix_row(n, first + r, {p.row + r * kStepKeys, p.head}, {to.row + r * kStepKeys, to.head});
      p = {to.row, to.head};
    }
    if (kPairs) p = paired_rows(p);
    const int64_t columns = t_.value_width.columns;
    for (int64_t h = 0; h < t_.heads; ++h) {
      const Word* const values =
          t_.head[h].values + seen_.step(n) * kStepKeys / P::kElements * columns;
      float* const out = s_.out + (h * kStripRows + first) * columns;
      for (int64_t tile = 0; tile < columns; tile += kPanel) {
        const Word* const v = values + tile * (kPanel / P::kElements);
        for (int64_t r = 0; r < kMixRows; r += kRows) {
          const uint64_t some = some_of(s_.seen_results + first + r);
          if (some == 0) continue;
          if (columns - tile >= kPanel)
            add_tile<2>(some, p.of(h) + r * kStepWords, v, out + r * columns + tile);
          else
            add_tile<1>(some, p.of(h) + r * kStepWords, v, out + r * columns + tile);
        }
      }
    }
  }

  // Rows of P as words.
  HeadStep<const Word> paired_rows(HeadStep<const float> p) const {
    for (int64_t h = 0; h < t_.heads; ++h) {
      for (int64_t n = 0; n < kMixRows * kStepKeys; n += kPanel) {
        const float* const at = p.of(h) + n;
        P::store_row(s_.paired + h * (kMixPitch / 2) + n / 2, load(at), load(at + kLanes));
      }
    }
    return {s_.paired, kMixPitch / 2};
  }

  void mix_row(int64_t n, int64_t r, HeadStep<const float> x, HeadStep<float> y) {
    const uint64_t word = s_.seen_results[r];
    if (word != 0 && t_.mix_after != nullptr) {
      mix_heads(x, mix_of_row(r), t_.heads, t_.width_after, y);
    } else {
      for (int64_t h = 0; h < t_.heads; ++h) {
        for (int64_t c = 0; c < kStepKeys; c += kLanes)
          store(y.of(h) + c, word != 0 ? load(x.of(h) + c) : Float{});
      }
    }
    if (t_.drops && word != 0) drop(n, r, y);
  }
  void drop(int64_t n, int64_t r, HeadStep<float> y) const {
    alignas(64) float keep[kPanel];
    for (int64_t h = 0; h < t_.heads; ++h) {
      for (int64_t key = 0; key < kStepKeys; key += kPanel) {
        keep_keys(t_.head[h].rule, t_.first_index + first_ + r,
                  seen_.step(n) * kStepKeys - lag_ + key, keep);
        for (int v = 0; v < 2; ++v) {
          float* const at = y.of(h) + key + v * kLanes;
          store(at, load(at) * load(keep + v * kLanes));
        }
      }
    }
  }

  template <int N>
  FOVEA_INLINE void add_tile(uint64_t some, const Word* p, const Word* v, float* out) const {
    const int64_t columns = t_.value_width.columns;
    Float c[kRows][N];
    load_tile(c, out, columns);
    for (int64_t key = 0; key < kStepKeys; key += kPanel) {
      if ((some & bits_between(key, key + kPanel)) == 0) continue;
      multiply_add<P>(c, kPanel / P::kElements, p + key / P::kElements, kStepWords, 1,
                      v + key / P::kElements * columns, N * kLanes);
    }
    store_tile(c, out, columns);
  }

  void write() {
    const int64_t columns = t_.value_width.columns;
    const bool scaled = t_.mix_after == nullptr && has_row_factors();
    for (int64_t h = 0; h < t_.heads; ++h) {
      for (int64_t r = 0; r < rows_; ++r) {
        const int64_t row = h * kStripRows + r;
        const float* const from = s_.out + row * columns;
        const float factor = scaled ? row_factor(row) : 1.0f;
        T* const to = t_.head[h].out + (first_ + r) * t_.out_row;
        const bool unusable = sees_unusable(t_.head[h].unusable, r);
        for (int64_t c = 0; c < t_.value_width.elements; ++c)
          from_float(unusable ? __builtin_nanf("") : from[c] * factor, to[c]);
      }
    }
  }
  // Some value that the row sees is not finite; its packed row is 0.
  bool sees_unusable(const uint64_t* unusable, int64_t r) const {
    for (int64_t n = 0; unusable != nullptr && n < seen_.count(); ++n)
      if ((seen_.of(n)[r] & unusable[seen_.step(n)]) != 0) return true;
    return false;
  }

  const MixingStrips<T>& t_;
  const StripScratch s_;
  SeenWords<T> seen_;
  RowTerms terms_;
  const int64_t lag_before_, lag_;
  const bool eq4_;
  int64_t strip_ = 0, first_ = 0, rows_ = 0, live_begin_ = 0;
  bool fresh_[kStripRows];
  bool counts_ = false;  // exponentials add to the sums of their rows
};

template <class T, class P>
int64_t mixing_forward_floats(const MixingStrips<T>& task) {
  return StripScratch(task, P::kElements == 2, nullptr).floats;
}

template <class T, class P>
void forward_strips(const MixingStrips<T>& task, float* scratch) {
  const FlushDenormals flush;
  StripWalk<T, P>(task, scratch).run();
}

template <class T, class P>
MixingTable<T> mixing_table_of(const char* isa, const MixingGradientPass<T>& gradient) {
  return {.isa = isa,
          .panel = kPanel,
          .elements = P::kElements,
          .lanes = kLanes,
          .pack = pack_panel<T, P>,
          .forward_scratch = mixing_forward_floats<T, P>,
          .forward = forward_strips<T, P>,
          .gradient = gradient};
}

}  // namespace
}  // namespace fovea::kernels
