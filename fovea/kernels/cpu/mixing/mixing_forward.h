// The forward pass over strips of queries (docs/kernels/mixing.md).
//
//   pass 1, step by step:  S = Q K^T -> [window -> convolution] -> [mix] -> E = 2^(x - m), kept
//   pass 2, step by step:  E / l -> [window -> convolution] -> [mix] -> O += P V
//
// Each convolution reads rows that the strip before handed on, and keys of the past alone: its
// results lag by kKernelLag keys. Softmax needs no pass for the maximum: a row's reference m is its
// largest logit in the first step in which it sees a key. A row whose sum leaves the safe range
// gets its exact maximum, and pass 1 runs again; other rows then repeat their bits. Where E of all
// keys would take too much memory, pass 2 computes each step of it again.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/mixing/mixing_terms.h"
#include "fovea/kernels/cpu/mixing/mixing_window.h"

namespace fovea::kernels {
namespace {

constexpr float kSafeTotal = 0x1p64f;     // beyond it a sum or O could overflow
constexpr float kSmallestRowSum = 1e-6f;  // of renormalised rows (M-9)
constexpr int64_t kWarmUpRows = 24;       // the rows that a first strip's neighbour needs, 2 x 7
static_assert(2 * (kMostKernelRows - 1) + kConvolutionRows <= kWarmUpRows);

template <class T, class P>
class StripWalk : private StripWindows<T, P> {
  using Windows = StripWindows<T, P>;
  using Windows::convolve_logits;
  using Windows::eq4_;
  using Windows::fill_window;
  using Windows::first_;
  using Windows::forget;
  using Windows::hand_on;
  using Windows::kPairs;
  using Windows::kStep;
  using Windows::kStepWords;
  using Windows::lag_before_;
  using Windows::load_halo;
  using Windows::load_history;
  using Windows::load_queries;
  using Windows::pack_taps;
  using Windows::packed_taps;
  using Windows::pair_window;
  using Windows::products;
  using Windows::s_;
  using Windows::save_history;
  using Windows::seen_;
  using Windows::some_of;
  using Windows::strip_;
  using Windows::t_;

 public:
  StripWalk(const MixingStrips<T>& task, float* memory)
      : Windows(task, memory),
        terms_(task.terms),
        lag_(lag_before_ + (task.rows_after > 0 ? kKernelLag : 0)) {}

  void run() {
    if (kPairs) pack_taps();
    forget(s_.before);
    forget(s_.after);
    const bool joined = t_.rows_before > 1 || t_.rows_after > 1;
    if (joined && t_.strip_begin > 0) walk(t_.strip_begin - 1, true);
    for (int64_t strip = t_.strip_begin; strip < t_.strip_end; ++strip) walk(strip, false);
  }

 private:
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
    load_history(history, n, kStep);
    load_halo(s_.after, h, n, earlier, kStep);
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
    if (earlier > 0) hand_on(s_.after, h, n, earlier, kStep);
    save_history(history, kStep);
  }
  Taps taps_after(int64_t h) const {
    const int64_t rows = t_.rows_after, keys = t_.keys_after;
    return taps_of<P>(kPairs ? packed_taps(s_.taps_after, h, rows, keys) : t_.head[h].taps_after,
                      rows, keys);
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
      this->template convolve<P>(taps_after(h),
                                 single_taps(t_.head[h].taps_after, t_.rows_after, t_.keys_after),
                                 s_.seen_results, -1, rows);
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

  // The factor of a row of the last sum over keys: 1 / l where no convolution has used it, 1 / n of
  // renormalised rows, else 1.
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
    add_to_sums<P, N>(out, columns, true, [&](const auto& add) FOVEA_ALWAYS {
      for (int64_t key = 0; key < kStepKeys; key += kPanel) {
        if ((some & bits_between(key, key + kPanel)) == 0) continue;
        add(kPanel / P::kElements, p + key / P::kElements, kStepWords, 1,
            v + key / P::kElements * columns);
      }
    });
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

  RowTerms terms_;
  const int64_t lag_;
  int64_t rows_ = 0, live_begin_ = 0;
  bool fresh_[kStripRows];
  bool counts_ = false;  // exponentials add to the sums of their rows
};

template <class T, class P>
int64_t mixing_forward_floats(const MixingStrips<T>& task) {
  return StripScratch(task, P{}, nullptr).floats;
}

template <class T, class P>
void forward_strips(const MixingStrips<T>& task, float* scratch) {
  const FlushDenormals flush;
  [[maybe_unused]] const TileUse tiles;
  StripWalk<T, P>(task, scratch).run();
}

}  // namespace
}  // namespace fovea::kernels
