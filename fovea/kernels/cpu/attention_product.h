// Packed operands of the attention kernels and the one product that works on them.
//
// A word is 32 bits: one float32, or two neighbouring bfloat16. In words all layouts are the same
// for both, so every kernel is written once. A strip is kStrip rows of q, k, v or dO; its layouts:
//   natural  [kStrip][pitch]           the rows themselves (left operand: words are broadcast)
//   columns  [pitch][kStrip]           transposed (right operand of q.k: one lane, one row)
//   rows     [kStrip / E][columns]     cut into tiles of kStrip columns (right operand of P v: one
//                                      lane, one column; with bfloat16, E = 2 rows share a word)
// Rows and columns beyond the tensor's are zeros.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/attention_lanes.h"

namespace fovea::kernels {
namespace {

/// What a word holds and how two of them multiply.
struct Single {
  static constexpr int kElements = 1, kExpDegree = 5;
  static constexpr bool kTiles = false;
  static FOVEA_INLINE Float multiply_add(Float a, Float b, Float c) { return a * b + c; }
  /// Stores two vectors of one row of P or dS as words.
  static FOVEA_INLINE void store_row(Word* p, Float low, Float high) {
    store(p, low);
    store(p + kLanes, high);
  }
  /// Stores one vector; the words of a strip's second half are kLanes / kElements further on.
  static FOVEA_INLINE void store_half(Word* p, Float x) { store(p, x); }
};

#if defined(__AVX512BF16__)
struct Pair {
  static constexpr int kElements = 2, kExpDegree = 3;
  static constexpr bool kTiles = false;
  static FOVEA_INLINE Float multiply_add(Float a, Float b, Float c) {
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  static FOVEA_INLINE void store_row(Word* p, Float low, Float high) {
    store(p, reinterpret_cast<Float>(_mm512_cvtne2ps_pbh(high, low)));
  }
  static FOVEA_INLINE void store_half(Word* p, Float x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(x));
  }
};

/// Two rows of 32 bfloat16 as pairs: word n of `low` holds columns n of both, of `high` 16 + n.
FOVEA_INLINE void weave_rows(Float even, Float odd, Float& low, Float& high) {
  alignas(64) static constexpr uint16_t kLow[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                    37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                    11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i at = _mm512_load_si512(kLow), next = _mm512_add_epi16(at, _mm512_set1_epi16(16));
  const __m512i a = reinterpret_cast<__m512i>(even), b = reinterpret_cast<__m512i>(odd);
  low = reinterpret_cast<Float>(_mm512_permutex2var_epi16(a, at, b));
  high = reinterpret_cast<Float>(_mm512_permutex2var_epi16(a, next, b));
}
#endif

/// c[R][N vectors] += a[R x depth words] b[depth x N vectors of words]: word (i, k) of the left
/// operand at a + i a_row + k a_step, row k of the right one at b + k b_row.
template <class P, int R, int N>
FOVEA_INLINE void multiply_add(Float (&c)[R][N], int64_t depth, const Word* a, int64_t a_row,
                               int64_t a_step, const Word* b, int64_t b_row) {
#pragma GCC unroll 2
  for (int64_t k = 0; k < depth; ++k) {
    Float right[N];
#pragma GCC unroll 2
    for (int v = 0; v < N; ++v) right[v] = load(b + k * b_row + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Float left = broadcast(a[i * a_row + k * a_step]);
#pragma GCC unroll 2
      for (int v = 0; v < N; ++v) c[i][v] = P::multiply_add(left, right[v], c[i][v]);
    }
  }
}

template <int R, int N>
FOVEA_INLINE void clear(Float (&c)[R][N]) {
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < N; ++v) c[i][v] = Float{};
  }
}

template <int R, int N>
FOVEA_INLINE void load_tile(Float (&c)[R][N], const float* from, int64_t row) {
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < N; ++v) c[i][v] = load(from + i * row + v * kLanes);
  }
}

template <int R, int N>
FOVEA_INLINE void store_tile(const Float (&c)[R][N], float* to, int64_t row) {
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < N; ++v) store(to + i * row + v * kLanes, c[i][v]);
  }
}

// One row of a tensor as words, zeros behind it.
template <class T, class P>
FOVEA_INLINE void copy_row(const T* from, int64_t width, int64_t pitch, Word* to) {
  if constexpr (P::kElements == 1) {
    for (int64_t c = 0; c < width; ++c) to[c] = to_float(from[c]);
    for (int64_t c = width; c < pitch; ++c) to[c] = 0.0f;
  } else {
    const int64_t words = width / P::kElements;
    const Word* row = reinterpret_cast<const Word*>(from);
    int64_t c = 0;  // rows are short: a call of memcpy costs more than the copy
    for (; c + kLanes <= words; c += kLanes) store(to + c, load(row + c));
    for (; c < words; ++c) to[c] = row[c];
    for (; c < pitch; ++c) to[c] = 0.0f;
  }
}

#if defined(__AVX512F__)
// 16 x 16 words in registers: pairs of rows, of pairs, of quarters.
FOVEA_INLINE void transpose(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    t[j] = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88);
    t[4 + j] = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xDD);
    t[8 + j] = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
    t[12 + j] = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xDD);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    r[j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0x88);
    r[8 + j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0xDD);
    r[4 + j] = _mm512_shuffle_i32x4(t[4 + j], t[12 + j], 0x88);
    r[12 + j] = _mm512_shuffle_i32x4(t[4 + j], t[12 + j], 0xDD);
  }
}
#endif

FOVEA_INLINE void natural_to_columns(const Word* natural, int64_t pitch, Word* columns) {
#if defined(__AVX512F__)
  for (int half = 0; half < kStrip; half += kLanes) {
    for (int64_t c = 0; c < pitch; c += kLanes) {
      __m512i r[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(natural + (half + i) * pitch + c);
      transpose(r);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) _mm512_storeu_si512(columns + (c + i) * kStrip + half, r[i]);
    }
  }
#else
  for (int row = 0; row < kStrip; ++row) {
    for (int64_t c = 0; c < pitch; ++c) columns[c * kStrip + row] = natural[row * pitch + c];
  }
#endif
}

template <class P>
FOVEA_INLINE void natural_to_rows(const Word* natural, int64_t pitch, int64_t columns, Word* rows) {
  for (int64_t tile = 0; tile < columns; tile += kStrip) {
    const int64_t width = columns - tile < kStrip ? columns - tile : kStrip;
    Word* to = rows + tile * (kStrip / P::kElements);
    for (int64_t row = 0; row < kStrip; row += P::kElements, to += width) {
      if constexpr (P::kElements == 1) {
        for (int64_t c = 0; c < width; ++c) to[c] = natural[row * pitch + tile + c];
      } else {
#if defined(__AVX512BF16__)
        if (width == kStrip) {
          Float low, high;
          weave_rows(load(natural + row * pitch + tile / 2),
                     load(natural + (row + 1) * pitch + tile / 2), low, high);
          store(to, low);
          store(to + kLanes, high);
          continue;
        }
#endif
        typedef uint16_t Half __attribute__((may_alias));
        typedef uint32_t Whole __attribute__((may_alias));
        const Half* even = reinterpret_cast<const Half*>(natural + row * pitch) + tile;
        const Half* odd = reinterpret_cast<const Half*>(natural + (row + 1) * pitch) + tile;
        Whole* pair = reinterpret_cast<Whole*>(to);
        for (int64_t c = 0; c < width; ++c)
          pair[c] = static_cast<uint32_t>(even[c]) | static_cast<uint32_t>(odd[c]) << 16;
      }
    }
  }
}

/// Packs one strip into those layouts whose pointer is not null. `scratch` holds one natural strip.
template <class T, class P>
void pack_strip(const StripSource<T>& from, const PackedWidth& width, const StripLayouts& to,
                Word* scratch) {
  Word* natural = to.natural != nullptr ? to.natural : scratch;
  for (int64_t row = 0; row < kStrip; ++row) {
    if (row < from.ahead) {
      const int64_t next = from.index != nullptr ? from.index[row + kStrip] : row + kStrip;
      if (next >= 0) {
        const T* const first = from.data + next * from.stride;
        for (int64_t c = 0; c < width.elements; c += 64 / static_cast<int64_t>(sizeof(T)))
          __builtin_prefetch(first + c, 0, 3);
      }
    }
    Word* out = natural + row * width.pitch;
    const int64_t at = from.index != nullptr && row < from.rows ? from.index[row] : row;
    if (row < from.rows && at >= 0) {
      copy_row<T, P>(from.data + at * from.stride, width.elements, width.pitch, out);
    } else {
      for (int64_t c = 0; c < width.pitch; ++c) out[c] = 0.0f;
    }
  }
  if (to.columns != nullptr) natural_to_columns(natural, width.pitch, to.columns);
  if (to.rows != nullptr) natural_to_rows<P>(natural, width.pitch, width.columns, to.rows);
}

}  // namespace
}  // namespace fovea::kernels
