// The loops of convolution.h, written once and compiled once per instruction set
// (kernel_table.h says why everything here has internal linkage).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/common/bfloat16.h"
#include "fovea/kernels/cpu/kernel_table.h"
#include "fovea/kernels/cpu/mixing/convolution.h"

namespace fovea::kernels {
namespace {

// The last cq rows of a map, each between zeros.
template <class T>
class PaddedRows {
 public:
  PaddedRows(const Convolution<T>& c, int64_t left, T* memory)
      : keys_(c.keys), left_(left), count_(c.queries), width_(c.padded_width()), rows_(memory) {
    for (int64_t n = 0; n < count_ * width_; ++n) rows_[n] = T(0);
  }

  void load(int64_t row, const T* __restrict values) {
    T* __restrict to = rows_ + row % count_ * width_ + left_;
    for (int64_t j = 0; j < keys_; ++j) to[j] = values[j];
  }
  // The number that tap 0 of key 0 reads.
  const T* row(int64_t row) const { return rows_ + row % count_ * width_; }

 private:
  int64_t keys_, left_, count_, width_;
  T* rows_;
};

template <class T>
bool any(const T* __restrict x, int64_t n) {
  int found = 0;
#pragma omp simd reduction(| : found)
  for (int64_t j = 0; j < n; ++j) found |= x[j] != T(0);
  return found != 0;
}

// In whole stretches.
template <class T>
KeyExtent extent_of(const T* x, int64_t keys) {
  constexpr int64_t kStretch = Convolution<T>::kStretch;
  KeyExtent e{.begin = 0, .end = keys};
  while (e.end > 0) {
    const int64_t first = (e.end - 1) / kStretch * kStretch;
    if (any(x + first, e.end - first)) break;
    e.end = first;
  }
  while (e.begin + kStretch <= e.end && !any(x + e.begin, kStretch)) e.begin += kStretch;
  return e;
}

// One row of results: y[j] = sum over pairs and c of taps[c] row[j + c].
template <class T>
void add_pairs(const RowAndTaps<T>* pairs, int64_t count, int64_t left, int64_t taps, int64_t keys,
               T* y) {
  constexpr int64_t kStretch = Convolution<T>::kStretch;
  KeyExtent all{keys, 0};
  for (int64_t n = 0; n < count; ++n) {
    if (pairs[n].extent.begin >= pairs[n].extent.end) continue;
    all.begin = all.begin < pairs[n].extent.begin ? all.begin : pairs[n].extent.begin;
    all.end = all.end > pairs[n].extent.end ? all.end : pairs[n].extent.end;
  }
  // Results reach `left` keys beyond what is not 0, and taps - 1 - left before it.
  const int64_t right = taps - 1 - left;
  const int64_t begin = all.begin > right ? (all.begin - right) / kStretch * kStretch : 0;
  const int64_t end = all.begin >= all.end ? 0 : all.end + left < keys ? all.end + left : keys;
  for (int64_t j = 0; j < (begin < keys ? begin : keys); ++j) y[j] = T(0);
  int64_t done = begin;
  for (int64_t j = begin; j < end; j += kStretch) {
    T sums[kStretch] = {};
    for (int64_t n = 0; n < count; ++n) {
      const T* __restrict x = pairs[n].row + j;
      const T* __restrict kernel = pairs[n].taps;
      for (int64_t c = 0; c < taps; ++c) {
        const T k = kernel[c];
#pragma omp simd
        for (int64_t l = 0; l < kStretch; ++l) sums[l] += k * x[c + l];
      }
    }
    const int64_t some = keys - j < kStretch ? keys - j : kStretch;
    for (int64_t l = 0; l < some; ++l) y[j + l] = sums[l];
    done = j + some;
  }
  for (int64_t j = done; j < keys; ++j) y[j] = T(0);
}

template <class T>
int64_t first_row(const Convolution<T>& c, int64_t map, int64_t row) {
  if (c.first_row == nullptr) return 0;
  return c.first_row[(c.sequences > 1 ? map / c.heads : 0) * c.rows + row];
}

template <class T>
void convolve_map(const Convolution<T>& c, int64_t map, const T* x_all, T* y_all,
                  const ConvolutionScratch<T>& s) {
  const T* x = x_all + map * c.rows * c.keys;
  T* y = y_all + map * c.results * c.keys;
  const T* kernel = c.kernel + map % c.heads * c.queries * c.taps;
  PaddedRows<T> rows(c, c.older(), s.rows);
  const int64_t skipped = c.rows - c.results;
  const int64_t start = skipped > c.queries - 1 ? skipped - (c.queries - 1) : 0;
  for (int64_t i = start; i < c.rows; ++i) {
    rows.load(i, x + i * c.keys);
    s.extents[i % c.queries] = extent_of(x + i * c.keys, c.keys);
    if (i < skipped) continue;
    const int64_t first = first_row(c, map, i);
    int64_t count = 0;
    for (int64_t back = 0; back < c.queries && i - back >= first; ++back) {
      s.pairs[count++] = {rows.row(i - back), kernel + (c.queries - 1 - back) * c.taps,
                          s.extents[(i - back) % c.queries]};
    }
    add_pairs(s.pairs, count, c.older(), c.taps, c.keys, y + (i - skipped) * c.keys);
  }
}

// The same with the kernel turned round: row i of x is in results i ... i + cq - 1 of its document.
template <class T>
void input_gradient_of_map(const Convolution<T>& c, int64_t map, const T* dy_all, T* dx_all,
                           const ConvolutionScratch<T>& s) {
  const int64_t skipped = c.rows - c.results, left = c.taps - 1 - c.older();
  const T* dy = dy_all + map * c.results * c.keys;
  T* dx = dx_all + map * c.rows * c.keys;
  const T* kernel = c.kernel + map % c.heads * c.queries * c.taps;
  for (int64_t a = 0; a < c.queries; ++a)
    for (int64_t t = 0; t < c.taps; ++t)
      s.reversed[a * c.taps + t] = kernel[a * c.taps + c.taps - 1 - t];
  PaddedRows<T> rows(c, left, s.rows);
  int64_t loaded = skipped;  // rows before it are in `rows`
  for (int64_t i = 0; i < c.rows; ++i) {
    for (; loaded < c.rows && loaded < i + c.queries; ++loaded) {
      const T* row = dy + (loaded - skipped) * c.keys;
      rows.load(loaded, row);
      s.extents[loaded % c.queries] = extent_of(row, c.keys);
    }
    int64_t count = 0;
    for (int64_t later = 0; later < c.queries && i + later < c.rows; ++later) {
      const int64_t result = i + later;
      if (result < skipped) continue;
      if (first_row(c, map, result) > i) break;
      s.pairs[count++] = {rows.row(result), s.reversed + (c.queries - 1 - later) * c.taps,
                          s.extents[result % c.queries]};
    }
    add_pairs(s.pairs, count, left, c.taps, c.keys, dx + i * c.keys);
  }
}

// sums[t][lane] += dy[j] x[j + t] for `kTaps` taps.
template <class T>
FOVEA_INLINE void add_dots(const T* __restrict dy, const T* __restrict x, int64_t keys,
                           T* __restrict sums) {
  constexpr int64_t kTaps = Convolution<T>::kTaps, kLanes = Convolution<T>::kLanes;
  T local[kTaps][kLanes];
  for (int64_t t = 0; t < kTaps; ++t)
    for (int64_t l = 0; l < kLanes; ++l) local[t][l] = sums[t * kLanes + l];
  for (int64_t j = 0; j < keys; j += kLanes) {
    for (int64_t t = 0; t < kTaps; ++t) {
#pragma omp simd
      for (int64_t l = 0; l < kLanes; ++l) local[t][l] += dy[j + l] * x[j + t + l];
    }
  }
  for (int64_t t = 0; t < kTaps; ++t)
    for (int64_t l = 0; l < kLanes; ++l) sums[t * kLanes + l] = local[t][l];
}

// The lanes' sums added to the totals, and set to 0.
template <class T>
void collect(const Convolution<T>& c, const ConvolutionScratch<T>& s) {
  constexpr int64_t kTaps = Convolution<T>::kTaps, kLanes = Convolution<T>::kLanes;
  const int64_t padded = (c.taps + kTaps - 1) / kTaps * kTaps;
  for (int64_t a = 0; a < c.queries; ++a) {
    for (int64_t t = 0; t < padded; ++t) {
      T* lanes = s.sums + (a * padded + t) * kLanes;
      double sum = 0;
      for (int64_t l = 0; l < kLanes; ++l) {
        sum += static_cast<double>(lanes[l]);
        lanes[l] = T(0);
      }
      if (t < c.taps) s.totals[a * c.taps + t] += sum;
    }
  }
}

template <class T>
void kernel_gradient_of_map(const Convolution<T>& c, int64_t map, const T* x_all, const T* dy_all,
                            T* dkernel_all, const ConvolutionScratch<T>& s) {
  constexpr int64_t kTaps = Convolution<T>::kTaps, kLanes = Convolution<T>::kLanes;
  constexpr int64_t kRowsOfSums = 16;  // so that float32 sums stay short
  const int64_t skipped = c.rows - c.results, padded = (c.taps + kTaps - 1) / kTaps * kTaps;
  const T* x = x_all + map * c.rows * c.keys;
  const T* dy = dy_all + map * c.results * c.keys;
  T* dkernel = dkernel_all + map * c.queries * c.taps;
  for (int64_t n = 0; n < c.queries * padded * kLanes; ++n) s.sums[n] = T(0);
  for (int64_t n = 0; n < c.queries * c.taps; ++n) s.totals[n] = 0;
  PaddedRows<T> rows(c, c.older(), s.rows);
  T* dy_row = s.rows + c.queries * c.padded_width();
  for (int64_t n = 0; n < c.padded_width(); ++n) dy_row[n] = T(0);
  const int64_t start = skipped > c.queries - 1 ? skipped - (c.queries - 1) : 0;
  for (int64_t i = start; i < c.rows; ++i) {
    rows.load(i, x + i * c.keys);
    if (i < skipped) continue;
    const KeyExtent seen = extent_of(dy + (i - skipped) * c.keys, c.keys);
    for (int64_t j = 0; j < c.keys; ++j) dy_row[j] = dy[(i - skipped) * c.keys + j];
    const int64_t first = first_row(c, map, i);
    for (int64_t back = 0; back < c.queries && i - back >= first; ++back) {
      const T* row = rows.row(i - back) + seen.begin;
      T* sums = s.sums + (c.queries - 1 - back) * padded * kLanes;
      for (int64_t t = 0; t < c.taps; t += kTaps)
        add_dots(dy_row + seen.begin, row + t, seen.end - seen.begin, sums + t * kLanes);
    }
    if ((i - skipped) % kRowsOfSums == kRowsOfSums - 1) collect(c, s);
  }
  collect(c, s);
  for (int64_t n = 0; n < c.queries * c.taps; ++n) dkernel[n] = static_cast<T>(s.totals[n]);
}

template <Isa isa, class T>
constexpr ConvolutionTable<T> table_of() {
  return {convolve_map<T>, input_gradient_of_map<T>, kernel_gradient_of_map<T>};
}

}  // namespace
}  // namespace fovea::kernels
