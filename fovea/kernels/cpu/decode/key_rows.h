// How decoding reads rows of keys and values: as vectors of words, and ahead of their use.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/common/bfloat16.h"
#include "fovea/kernels/cpu/pointwise/attention_table.h"
#include "fovea/kernels/cpu/simd/words.h"

namespace fovea::kernels {
namespace {

/// kLanes words of a row from word `at` on; `remaining` words exist from there.
template <class T, class P>
FOVEA_INLINE Float load_words(const T* row, int64_t at, int64_t remaining) {
  if constexpr (sizeof(T) * P::kElements == sizeof(Word)) {
    const Word* words = reinterpret_cast<const Word*>(row) + at;
    return remaining >= kLanes ? load(words) : load_first(words, remaining);
  } else {  // bfloat16 that becomes float32
    typedef uint16_t Halves __attribute__((vector_size(2 * kLanes), may_alias, aligned(2)));
    Halves halves{};
    if (remaining >= kLanes) {
      halves = *reinterpret_cast<const Halves*>(row + at);
    } else {
      for (int64_t i = 0; i < remaining; ++i) halves[i] = row[at + i].bits;
    }
    return reinterpret_cast<Float>(__builtin_convertvector(halves, Int) << 16);
  }
}

/// Whether elements become words by a conversion: bfloat16 without instructions that multiply it.
/// Two vectors of them are then read at once, the even elements and the odd ones, each by one
/// operation. Queries lie in that order too, and sums of values until the chunk's end.
template <class T, class P>
constexpr bool kSplits = sizeof(T) * P::kElements < sizeof(Word);

/// 2 kLanes bfloat16.
template <class T>
FOVEA_INLINE void load_split(const T* row, Float& even, Float& odd) {
  const Int both = reinterpret_cast<Int>(load(reinterpret_cast<const Word*>(row)));
  even = reinterpret_cast<Float>(both << 16);
  odd = reinterpret_cast<Float>(both & ~0xFFFF);
}

/// Elements of whole pairs of vectors: from the order of memory to that of load_split(), or back.
template <bool back>
inline void reorder_row(float* row, int64_t width) {
  float pair[2 * kLanes];
  for (int64_t c = 0; c + 2 * kLanes <= width; c += 2 * kLanes) {
    __builtin_memcpy(pair, row + c, sizeof(pair));
    for (int i = 0; i < 2 * kLanes; ++i) {
      const int split = i / 2 + i % 2 * kLanes;
      row[c + (back ? i : split)] = pair[back ? split : i];
    }
  }
}

/// Prefetches the lines of keys or values in the order of memory, as many as are used meanwhile. So
/// the queue of misses is neither empty nor full, and a full one drops prefetches. The hardware's
/// own prefetchers follow that order, and not the one in which several rows are used at once.
template <class T>
class DecodeLines {
 public:
  struct Rows {
    const T* data;
    int64_t stride, elements;      // of a row, `elements` of them read
    const int32_t* index;          // null: row n is key n
    const int64_t* offsets;        // of key n at n - offsets_begin; may be null
    int64_t offsets_begin, limit;  // limit: of keys
  };

  FOVEA_INLINE void begin(const Rows& rows, int64_t key) {
    rows_ = rows;
    key_ = key - 1;
    line_ = reinterpret_cast<const char*>(rows.data);  // where no key is left to prefetch
    next_row();
  }
  /// A row's end is looked for once for all of them.
  template <int64_t lines>
  FOVEA_INLINE void advance() {
#pragma GCC unroll 8
    for (int64_t n = 0; n < lines; ++n) __builtin_prefetch(line_ + n * kLine, 0, 2);
    line_ += lines * step_;
    if (line_ >= end_) next_row();
  }

 private:
  // Rows that follow each other without a gap are one.
  FOVEA_INLINE void next_row() {
    if (++key_ >= rows_.limit) {  // no more: the same line again and again
      step_ = 0;
      end_ = line_ + 1;
      return;
    }
    int64_t count = 1;
    const T* row = rows_.data;
    if (rows_.index == nullptr) {
      row += key_ * rows_.stride;
      if (rows_.elements == rows_.stride) count = rows_.limit - key_;
    } else {
      row += rows_.offsets != nullptr ? rows_.offsets[key_ - rows_.offsets_begin]
                                      : rows_.index[key_] * rows_.stride;
    }
    key_ += count - 1;
    line_ = reinterpret_cast<const char*>(row);
    end_ = line_ + count * rows_.elements * static_cast<int64_t>(sizeof(T));
    step_ = kLine;
  }

  static constexpr int64_t kLine = 64;
  Rows rows_{};
  int64_t key_ = 0, step_ = 0;
  const char *line_ = nullptr, *end_ = nullptr;
};

}  // namespace
}  // namespace fovea::kernels
