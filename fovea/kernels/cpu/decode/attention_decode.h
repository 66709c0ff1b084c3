// Decoding: a few rows of queries against keys and values that are read once, where they lie.
//
// clang-format off
//   per 64 keys:   x = q.K^T (kLanes keys at a time) -> logit, range
//                  m = max(m, x),  P = 2^(x - m),  O = O 2^(old m - m) + P V
// clang-format on
//
// Keys and values are read once and not packed, so the time is that of reading memory. The keys of
// a sequence are cut into chunks of equal length, whatever the number of threads or the batch;
// finish_decode_row() joins their parts in order.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/decode/key_rows.h"
#include "fovea/kernels/cpu/pointwise/attention_gate.h"

namespace fovea::kernels {
namespace {

constexpr int kDecodeKeys = 64;  // keys between two looks at the maximum
constexpr int kDecodeBlock = 4;  // rows of O that are summed at a time
// Vectors of each: eight sums, so that none waits for its own last product, in half of the
// registers.
template <int R>
constexpr int kDecodeVectors = kLanes == 16  ? 4
                               : kLanes == 4 ? 2
                               : R == 1      ? 8
                               : R == 2      ? 4
                                             : 2;

// Levels of 8 lanes read a value in several passes and a key for few rows at a time. There the key
// heads of a block read a short stretch of keys before any reads the next one.
constexpr int64_t kDecodeStretch = kLanes == 8 ? 8 : kDecodeKeys;
constexpr int64_t kDecodeHeads = kLanes == 8 ? kDecodeRows : 1;
// Keys from use to prefetch: measured.
constexpr int64_t kAhead = kLanes == 8 ? 8 : kDecodeAhead;
static_assert(kAhead <= kDecodeAhead);
// Bytes that a slice of the keys fetches before it begins: little beside a second-level cache. At
// levels of 8 lanes it is what the lines ahead leave out.
constexpr int64_t kDecodeFetched = int64_t{kLanes == 8 ? 16 : 128} << 10;

inline int64_t decode_floats(const PackedWidth& key) {
  return kDecodeRows * (key.pitch + kDecodeKeys + kLanes);
}

template <class T, class P>
class DecodeChunk {
 public:
  DecodeChunk(const DecodeBlock<T>& block, float* scratch)
      : b_(block), of_head_(block.rows / block.heads), part_(row_state(block.value_width)) {
    q_ = scratch;
    weights_ = q_ + kDecodeRows * b_.key_width.pitch;
    totals_ = weights_ + kDecodeRows * kDecodeKeys;
  }

  void run() {
    for (int64_t r = 0; r < b_.rows; ++r) {
      copy_row<T, P>(b_.q[r], b_.key_width.elements, b_.key_width.pitch,
                     q_ + r * b_.key_width.pitch);
      if constexpr (kSplits<T, P>)
        reorder_row<false>(q_ + r * b_.key_width.pitch, b_.key_width.words);
      for (int64_t n = 0; n < part_; ++n) b_.part[r][n] = 0.0f;
      store(totals_ + r * kLanes, Float{});
      maximum_[r] = -kInfinity;
    }
    // Tiles lie where they lie for every chunk and every neighbour: the sums keep their order.
    for (int64_t tile = b_.key_begin / kDecodeKeys * kDecodeKeys; tile < b_.key_end;
         tile += kDecodeKeys) {
      begin_ = tile < b_.key_begin ? b_.key_begin : tile;
      end_ = tile + kDecodeKeys < b_.key_end ? tile + kDecodeKeys : b_.key_end;
      score(tile);
      for (int64_t r = 0; r < b_.rows; ++r) weigh(r, tile);
      add_values(tile);
    }
    for (int64_t r = 0; r < b_.rows; ++r) {
      if constexpr (kSplits<T, P>) reorder_row<true>(b_.part[r], b_.value_width.elements);
      RowState& state = state_behind(b_.part[r], b_.value_width);
      state.reference = maximum_[r];
      state.total = sum(load(totals_ + r * kLanes));
    }
  }

 private:
  // Logits of the tile, in units of log 2, -inf where unseen.
  void score(int64_t tile) {
    lines_.begin({b_.k, b_.k_row, b_.heads * b_.key_width.elements, b_.index, b_.k_offsets,
                  b_.offsets_begin, b_.key_limit},
                 tile + kAhead);
    for (int64_t n = 0; n < kDecodeKeys; n += kDecodeStretch) {
      for (int64_t head = 0; head < b_.heads; ++head) {
        int64_t r = head * of_head_;
        const int64_t end = r + of_head_;
        for (; r + 4 <= end; r += 4) multiply<4>(tile, n, head, r);
        for (; r + 2 <= end; r += 2) multiply<2>(tile, n, head, r);
        for (; r < end; ++r) multiply<1>(tile, n, head, r);
      }
    }
    for (int64_t r = 0; r < b_.rows; ++r) {
      for (int64_t n = 0; n < kDecodeKeys; n += kLanes) {
        float* const to = weights_ + r * kDecodeKeys + n;
        const int64_t key = tile + n;
        const bool empty = key >= end_ || key + kLanes <= begin_;
        store(to, empty ? broadcast(-kInfinity) : logits(r, key, load(to)));
      }
    }
  }

  template <int R>
  void multiply(int64_t tile, int64_t from, int64_t head, int64_t r) {
    const bool whole = tile >= begin_ && tile + kDecodeKeys <= end_;
    if (b_.index != nullptr) return multiply<R, false, true>(tile, from, head, r);
    whole ? multiply<R, true, false>(tile, from, head, r)
          : multiply<R, false, false>(tile, from, head, r);
  }

  // Products of R rows and a stretch of the tile's keys, kLanes pairs at a time, so that a key is
  // read once for R rows. Where not all keys are of this tile, the others repeat its first or last
  // one.
  template <int R, bool whole, bool listed>
  void multiply(int64_t tile, int64_t from, int64_t head, int64_t r) {
    constexpr int kKeys = kLanes / R;
    const int64_t words = b_.key_width.words, pitch = b_.key_width.pitch, k_row = b_.k_row;
    const bool first = r == head * of_head_;  // of the head's rows
    const int64_t begin = begin_, last = end_ - 1;
    const T* const k = b_.k + head * b_.k_head;
    const Word* const q = q_ + r * pitch;
    float* const to = weights_ + r * kDecodeKeys;
    for (int64_t n = from; n < from + kDecodeStretch; n += kKeys) {
      const T* rows[kKeys];
#pragma GCC unroll 16
      for (int i = 0; i < kKeys; ++i) {
        int64_t j = tile + n + i;
        if (!whole) j = j < begin ? begin : (j < last ? j : last);
        rows[i] = row_at<listed>(k, k_row, b_.k_offsets, j);
      }
      Float sums[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) sums[i] = Float{};
      int64_t c = 0;
      if constexpr (kSplits<T, P>) {
        for (; c + 2 * kLanes <= words; c += 2 * kLanes) {
          if (first) fetch<kKeys * 2 * kLanes>(c / (2 * kLanes));
          add_split_products<R>(sums, q + c, pitch, rows, c);
        }
      }
      for (; c + kLanes <= words; c += kLanes) {
        if (first) fetch<kKeys * kLanes * P::kElements>(c / kLanes);
        add_products<R>(sums, q + c, pitch, rows, c, kLanes);
      }
      if (c < words) add_products<R>(sums, q + c, pitch, rows, c, words - c);
      alignas(64) float all[kLanes];
      store(all, sum_each(sums));
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i)
        __builtin_memcpy(to + i * kDecodeKeys + n, all + i * kKeys, kKeys * sizeof(float));
    }
  }

  template <int R>
  static FOVEA_INLINE void add_products(Float (&sums)[kLanes], const Word* q, int64_t pitch,
                                        const T* const (&rows)[kLanes / R], int64_t c,
                                        int64_t remaining) {
    constexpr int kKeys = kLanes / R;
    Float k[kKeys];
#pragma GCC unroll 16
    for (int i = 0; i < kKeys; ++i) k[i] = load_words<T, P>(rows[i], c, remaining);
#pragma GCC unroll 4
    for (int n = 0; n < R; ++n) {
      const Float row = load(q + n * pitch);
#pragma GCC unroll 16
      for (int i = 0; i < kKeys; ++i)
        sums[n * kKeys + i] = P::multiply_add(row, k[i], sums[n * kKeys + i]);
    }
  }

  template <int R>
  static FOVEA_INLINE void add_split_products(Float (&sums)[kLanes], const Word* q, int64_t pitch,
                                              const T* const (&rows)[kLanes / R], int64_t c) {
    constexpr int kKeys = kLanes / R;
#pragma GCC unroll 16
    for (int i = 0; i < kKeys; ++i) {
      Float even, odd;
      load_split(rows[i] + c, even, odd);
#pragma GCC unroll 4
      for (int n = 0; n < R; ++n) {
        Float& s = sums[n * kKeys + i];
        s = P::multiply_add(load(q + n * pitch), even, s);
        s = P::multiply_add(load(q + n * pitch + kLanes), odd, s);
      }
    }
  }

  FOVEA_INLINE Float logits(int64_t r, int64_t key, Float s) const {
    if (b_.plain && key >= b_.near[r].begin && key + kLanes <= b_.near[r].end)
      return s * b_.scale[r] * kLog2E;
    Int index{};
    for (int i = 0; i < kLanes; ++i) index[i] = i;
    index = index + static_cast<int32_t>(key);
    const auto inside = [&](const KeyRange& range) {
      return (index >= static_cast<int32_t>(range.begin)) &
             (index < static_cast<int32_t>(range.end));
    };
    const Int near = inside(b_.near[r]), seen = near | inside(b_.far[r]);
    s = s * b_.scale[r];
    if (!b_.plain) {
      const Int shift = near ? broadcast(static_cast<int32_t>(b_.near[r].shift))
                             : broadcast(static_cast<int32_t>(b_.far[r].shift));
      Float slope;
      s = capped<5>(*b_.head[r], s, slope);
      if (b_.gate_form == PairGate::Form::sigmoid_logit) s = s * load(b_.gate[r] + key);
      if (b_.gate_form == PairGate::Form::log_sigmoid) s = s + load(b_.gate[r] + key);
      s = biased(*b_.head[r], s, b_.position[r] - (index + shift));
    }
    return seen ? s * kLog2E : broadcast(-kInfinity);
  }

  // From logits to weights; what was summed before follows a new maximum.
  FOVEA_INLINE void weigh(int64_t r, int64_t tile) {
    float* row = weights_ + r * kDecodeKeys;
    Float top = load(row);
    for (int n = kLanes; n < kDecodeKeys; n += kLanes) top = larger(top, load(row + n));
    const float maximum = largest(top);
    if (maximum > maximum_[r]) {
      const Float shrink = exp2_lanes<5>(broadcast(maximum_[r] - maximum));
      maximum_[r] = maximum;
      store(totals_ + r * kLanes, load(totals_ + r * kLanes) * shrink);
      float* sums = b_.part[r];
      for (int64_t c = 0; c < b_.value_width.columns; c += kLanes)
        store(sums + c, load(sums + c) * shrink);
    }
    const Float m = broadcast(maximum_[r] > -kInfinity ? maximum_[r] : 0.0f);
    Word* weights = weights_ + r * kDecodeKeys;
    Float total = load(totals_ + r * kLanes);
    for (int n = 0; n < kDecodeKeys; n += kPanel) {
      Float low = exp2_lanes<P::kExpDegree>(load(row + n) - m);
      Float high = exp2_lanes<P::kExpDegree>(load(row + n + kLanes) - m);
      if (weighs_) {
        low = low * load(b_.gate[r] + tile + n);
        high = high * load(b_.gate[r] + tile + n + kLanes);
      }
      total = total + (low + high);
      P::store_row(weights + n / P::kElements, low, high);
    }
    store(totals_ + r * kLanes, total);
  }

  void add_values(int64_t tile) {
    constexpr int64_t kWords = kDecodeStretch / P::kElements;
    const int64_t first = (begin_ - tile) / P::kElements;
    const int64_t last = (end_ - tile + P::kElements - 1) / P::kElements;
    lines_.begin({b_.v, b_.v_row, b_.heads * b_.value_width.elements, b_.index, b_.v_offsets,
                  b_.offsets_begin, b_.key_limit},
                 tile + first * P::kElements + kAhead);
    for (int64_t n = first; n < last; n += kWords) {
      for (int64_t head = 0; head < b_.heads; ++head)
        add_stretch(tile, n, n + kWords < last ? n + kWords : last, head);
    }
  }

  // Words [begin, end) of the weights of a key head's rows.
  void add_stretch(int64_t tile, int64_t begin, int64_t end, int64_t head) {
    int64_t r = head * of_head_;
    const int64_t last = r + of_head_;
    for (; r + kDecodeBlock <= last; r += kDecodeBlock)
      add_rows<kDecodeBlock>(tile, begin, end, head, r);
    switch (last - r) {
      case 3:
        return add_rows<3>(tile, begin, end, head, r);
      case 2:
        return add_rows<2>(tile, begin, end, head, r);
      case 1:
        return add_rows<1>(tile, begin, end, head, r);
      default:
        return;
    }
  }

  // The widest columns first; what is left may fill no vector, and is summed as it lies.
  template <int R>
  void add_rows(int64_t tile, int64_t begin, int64_t end, int64_t head, int64_t r) {
    const int64_t width = b_.value_width.elements;
    int64_t c = 0;
    const auto add = [&]<int vectors>() FOVEA_ALWAYS {
      if constexpr (vectors <= kDecodeVectors<R>)
        for (; width - c >= vectors * kLanes; c += vectors * kLanes)
          add_columns<R, vectors, true>(tile, begin, end, head, r, c);
    };
    add.template operator()<8>();
    add.template operator()<4>();
    add.template operator()<2>();
    if (c < width) add_columns<R, 2, false>(tile, begin, end, head, r, c);
  }

  // O[r ... r + R][c ... c + kVectors * kLanes] += P V over words [begin, end) of the tile's keys.
  template <int R, int kVectors, bool whole>
  FOVEA_INLINE void add_columns(int64_t tile, int64_t begin, int64_t end, int64_t head, int64_t r,
                                int64_t c) {
    Float o[R][kVectors];
    float* at = b_.part[r] + c;
    const int64_t vectors = (b_.value_width.columns - c) / kLanes;
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        o[i][v] = whole || v < vectors ? load(at + i * part_ + v * kLanes) : Float{};
    }
    const T* const v_of_head = b_.v + head * b_.v_head;
    const Word* const weights = weights_ + r * kDecodeKeys;
    const bool first = r == head * of_head_;  // of the head's rows
    constexpr int64_t kLineElements = 64 / sizeof(T) / P::kElements;
    const auto add = [&]<bool listed>() FOVEA_ALWAYS {
      for (int64_t n = begin; n < end; ++n) {
        if (first && whole) fetch<kVectors * kLanes * P::kElements>(n);
        if (first && !whole)
          for (int64_t i = c; i < b_.value_width.elements; i += kLineElements)
            lines_.template advance<1>();
        Float rows[kVectors];
        load_values<kVectors, whole, listed>(v_of_head, tile + n * P::kElements, c, rows);
#pragma GCC unroll 4
        for (int i = 0; i < R; ++i) {
          const Float weight = broadcast(weights[i * kDecodeKeys + n]);
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) o[i][v] = P::multiply_add(weight, rows[v], o[i][v]);
        }
      }
    };
    b_.index == nullptr ? add.template operator()<false>() : add.template operator()<true>();
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        if (whole || v < vectors) store(at + i * part_ + v * kLanes, o[i][v]);
      }
    }
  }

  // Columns c ... of the value at `key`; with pairs, of it and the next one, zeros where that is
  // not of this tile.
  template <int kVectors, bool whole, bool listed>
  FOVEA_INLINE void load_values(const T* v_of_head, int64_t key, int64_t c,
                                Float (&rows)[kVectors]) const {
    const T* row = row_at<listed>(v_of_head, b_.v_row, b_.v_offsets, key);
    const auto remaining = [&](int v) {
      return whole ? kLanes : (b_.value_width.elements - c) / P::kElements - v * kLanes;
    };
    if constexpr (whole && kSplits<T, P>) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v += 2) load_split(row + c + v * kLanes, rows[v], rows[v + 1]);
    } else if constexpr (P::kElements == 1) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        rows[v] = remaining(v) > 0 ? load_words<T, P>(row + c, v * kLanes, remaining(v)) : Float{};
    } else {
      const bool has_even = key >= begin_, has_odd = key + 1 < end_;
      const T* next = has_odd ? row_at<listed>(v_of_head, b_.v_row, b_.v_offsets, key + 1) : row;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors / 2; ++v) {
        const bool some = remaining(v) > 0;
        const Float even =
            some && has_even ? load_words<T, P>(row + c, v * kLanes, remaining(v)) : Float{};
        const Float odd =
            some && has_odd ? load_words<T, P>(next + c, v * kLanes, remaining(v)) : Float{};
        P::weave(even, odd, rows[2 * v], rows[2 * v + 1]);
      }
    }
  }

  // Where key n of the chunk lies in k, or its value in v; `listed`: whether there is an index.
  template <bool listed>
  FOVEA_INLINE const T* row_at(const T* data, int64_t stride, const int64_t* offsets,
                               int64_t n) const {
    if constexpr (!listed) return data + n * stride;
    return data + (offsets != nullptr ? offsets[n - b_.offsets_begin] : b_.index[n] * stride);
  }

  // Prefetches for step n of a loop as many lines as `elements`, which a step uses, fill.
  template <int64_t elements>
  FOVEA_INLINE void fetch(int64_t n) {
    constexpr int64_t kBytes = elements * static_cast<int64_t>(sizeof(T)), kLine = 64;
    if constexpr (kBytes >= kLine) {
      lines_.template advance<kBytes / kLine>();
    } else {
      if (n % (kLine / kBytes) == 0) lines_.template advance<1>();
    }
  }

  const DecodeBlock<T>& b_;
  const int64_t of_head_, part_;  // of_head_: rows of a key head
  Word *q_, *weights_;            // weights_: [rows][kDecodeKeys], logits first
  float* totals_;                 // kLanes partial sums a row
  const bool weighs_ = multiplies_weights(b_.gate_form);
  DecodeLines<T> lines_;
  int64_t begin_ = 0, end_ = 0;
  float maximum_[kDecodeRows];
};

template <class T, class P>
void decode_block(const DecodeBlock<T>& block, float* scratch) {
  const FlushDenormals flush;
  DecodeChunk<T, P>(block, scratch).run();
}

template <class T>
void finish_decode_row(const DecodeRow<T>& p) {
  const FlushDenormals flush;
  const int64_t width = p.value_width.elements;
  float top = p.sink * kLog2E;
  for (int64_t n = 0; n < p.count; ++n) {
    const float m = state_behind(p.parts + n * p.stride, p.value_width).reference;
    top = m > top ? m : top;
  }
  float sums[kWidestHead] = {};
  RowState row{.reference = top};
  if (top > -kInfinity) row.total = __builtin_exp2f(p.sink * kLog2E - top);
  for (int64_t n = 0; n < p.count; ++n) {
    const float* part = p.parts + n * p.stride;
    const RowState& state = state_behind(part, p.value_width);
    if (state.total == 0.0f) continue;  // saw nothing
    const float factor = merge(row, state, false);
    for (int64_t c = 0; c < width; ++c) sums[c] += part[c] * factor;
  }
  const float inverse = row.total == 0.0f ? 0.0f : 1.0f / row.total;
  for (int64_t c = 0; c < width; ++c) from_float(sums[c] * inverse, p.out[c]);
  if (p.lse == nullptr) return;
  *p.lse = row.total == 0.0f ? -kInfinity : (top + __builtin_log2f(row.total)) * kLn2;
}

}  // namespace
}  // namespace fovea::kernels
