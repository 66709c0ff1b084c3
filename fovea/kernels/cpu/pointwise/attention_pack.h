// Rows of a tensor into the layouts of packed operands (attention_product.h).
//
// With 512-bit vectors a panel goes from its rows straight into every layout: 16 rows are loaded
// side by side, so that their cache misses overlap, and two bfloat16 take one lane of a
// transposition. Elsewhere rows become `natural` first.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/pointwise/attention_product.h"

namespace fovea::kernels {
namespace {

constexpr int64_t kLineBytes = 64;

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

/// The lanes of `count` elements, or all if there are more.
FOVEA_INLINE uint32_t first_lanes(int64_t count) {
  if (count >= 32) return ~0u;
  return count > 0 ? (1u << count) - 1u : 0u;
}

/// 64 bytes at `row`, zeros but for the elements of `lanes`, beyond which nothing is read.
FOVEA_INLINE __m512i row_vector(const float* row, uint32_t lanes) {
  return _mm512_maskz_loadu_epi32(static_cast<__mmask16>(lanes), row);
}
FOVEA_INLINE __m512i row_vector(const BFloat16* row, uint32_t lanes) {
  return _mm512_maskz_loadu_epi16(lanes, row);
}

/// 16 elements at `row` as float32, likewise.
FOVEA_INLINE Float row_floats(const float* row, uint32_t lanes) {
  return reinterpret_cast<Float>(row_vector(row, lanes));
}
FOVEA_INLINE Float row_floats(const BFloat16* row, uint32_t lanes) {
  const __m256i x = _mm256_maskz_loadu_epi16(static_cast<__mmask16>(lanes), row);
  return reinterpret_cast<Float>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

/// One row of a tensor as words, zeros behind it.
template <class T, class P>
FOVEA_INLINE void copy_row(const T* from, int64_t width, int64_t pitch, Word* to) {
  for (int64_t c = 0; c < pitch; c += kLanes) {
    const int64_t at = c * P::kElements;
    const uint32_t lanes = first_lanes(width - at);
    if constexpr (P::kElements == 1)
      store(to + c, row_floats(from + at, lanes));
    else
      store(to + c, reinterpret_cast<Float>(row_vector(from + at, lanes)));
  }
}

template <class T, class P>
FOVEA_INLINE void rows_to_columns(const T* const* rows, const PackedWidth& width, Word* columns) {
  constexpr int64_t kStep = kLineBytes / static_cast<int64_t>(sizeof(T));  // elements of a vector
  constexpr int64_t kWords = kStep / P::kElements;                         // as packed
  for (int64_t word = 0; word < width.pitch; word += kWords) {
    const int64_t c = word * P::kElements;
    const uint32_t lanes = first_lanes(width.elements - c);
    for (int half = 0; half < kPanel; half += kLanes) {
      __m512i r[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) r[i] = row_vector(rows[half + i] + c, lanes);
      transpose(r);
      Word* to = columns + word * kPanel + half;
      if constexpr (kWords == kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) _mm512_storeu_si512(to + i * kPanel, r[i]);
      } else {  // lanes of two bfloat16 become two columns
        const __m512i upper = _mm512_set1_epi32(static_cast<int32_t>(0xFFFF0000u));
        const auto split = [&](int i) FOVEA_ALWAYS {
          _mm512_storeu_si512(to + 2 * i * kPanel, _mm512_slli_epi32(r[i], 16));
          _mm512_storeu_si512(to + (2 * i + 1) * kPanel, _mm512_and_si512(r[i], upper));
        };
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) split(i);
        if (width.pitch - word <= kLanes) continue;
#pragma GCC unroll 8
        for (int i = 8; i < 16; ++i) split(i);
      }
    }
  }
}

/// `before(row)` is called once a row.
template <class T, class P, class Before>
FOVEA_INLINE void rows_to_rows(const T* const* rows, const PackedWidth& width, Word* to,
                               const Before& before) {
  for (int64_t tile = 0; tile < width.columns; tile += kPanel) {
    const bool whole = width.columns - tile >= kPanel;  // else half a tile
    const uint32_t lanes = first_lanes(width.elements - tile);
    const uint32_t more = first_lanes(width.elements - tile - kLanes);
    for (int64_t row = 0; row < kPanel; row += P::kElements) {
      for (int64_t n = row; tile == 0 && n < row + P::kElements; ++n) before(n);
      Float low, high{};
      if constexpr (P::kElements == 1) {
        low = row_floats(rows[row] + tile, lanes);
        if (whole) high = row_floats(rows[row] + tile + kLanes, more);
      } else {
        P::weave(reinterpret_cast<Float>(row_vector(rows[row] + tile, lanes)),
                 reinterpret_cast<Float>(row_vector(rows[row + 1] + tile, lanes)), low, high);
      }
      store(to, low);
      if (whole) store(to + kLanes, high);
      to += whole ? kPanel : kLanes;
    }
  }
}

#else

#if defined(__AVX2__)
// 8 x 8 words in registers: pairs of rows, of pairs, of halves.
FOVEA_INLINE void transpose(__m256 (&r)[8]) {
  __m256 t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xEE);
    r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm256_permute2f128_ps(r[i], r[4 + i], 0x20);
    t[4 + i] = _mm256_permute2f128_ps(r[i], r[4 + i], 0x31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = t[i];
}
#endif

/// One row of a tensor as words, zeros behind it.
template <class T, class P>
FOVEA_INLINE void copy_row(const T* from, int64_t width, int64_t pitch, Word* to) {
  static_assert(P::kElements == 1);
  for (int64_t c = 0; c < width; ++c) to[c] = to_float(from[c]);
  for (int64_t c = width; c < pitch; ++c) to[c] = 0.0f;
}

FOVEA_INLINE void natural_to_columns(const Word* natural, int64_t pitch, Word* columns) {
#if defined(__AVX2__)
  for (int64_t c = 0; c < pitch; c += kLanes) {
    for (int half = 0; half < kPanel; half += kLanes) {
      __m256 r[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(natural + (half + i) * pitch + c);
      transpose(r);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) _mm256_storeu_ps(columns + (c + i) * kPanel + half, r[i]);
    }
  }
#else
  for (int row = 0; row < kPanel; ++row) {
    for (int64_t c = 0; c < pitch; ++c) columns[c * kPanel + row] = natural[row * pitch + c];
  }
#endif
}

FOVEA_INLINE void natural_to_rows(const Word* natural, int64_t pitch, int64_t columns, Word* to) {
  for (int64_t tile = 0; tile < columns; tile += kPanel) {
    const int64_t width = columns - tile < kPanel ? columns - tile : kPanel;
    for (int64_t row = 0; row < kPanel; ++row, to += width) {
      for (int64_t c = 0; c < width; ++c) to[c] = natural[row * pitch + tile + c];
    }
  }
}

#endif

// Row `row` of a panel, null where there is none.
template <class T>
FOVEA_INLINE const T* panel_row(const PanelSource<T>& from, int64_t row) {
  if (row >= from.rows) return nullptr;
  const int64_t at = from.index != nullptr ? from.index[row] : row;
  return at >= 0 ? from.data + at * from.stride : nullptr;
}

// The row one panel after row `row`, if it is asked for.
template <class T>
FOVEA_INLINE void prefetch_next(const PanelSource<T>& from, int64_t row, int64_t elements) {
  if (row >= from.next_rows) return;
  const int64_t next = from.index != nullptr ? from.index[row + kPanel] : row + kPanel;
  if (next < 0) return;
  const T* const first = from.data + next * from.stride;
  for (int64_t c = 0; c < elements; c += kLineBytes / static_cast<int64_t>(sizeof(T)))
    __builtin_prefetch(first + c, 0, 2);
}

/// Packs one panel into those layouts whose pointer is not null. `scratch` holds one natural panel.
template <class T, class P>
void pack_panel(const PanelSource<T>& from, const PackedWidth& width, const PanelLayouts& to,
                [[maybe_unused]] Word* scratch) {
#if defined(__AVX512F__)
  alignas(64) static constexpr T kZeros[kWidestHead] = {};
  const T* rows[kPanel];
  for (int64_t row = 0; row < kPanel; ++row) {
    const T* const at = panel_row(from, row);
    rows[row] = at != nullptr ? at : kZeros;
  }
  if (to.columns != nullptr) rows_to_columns<T, P>(rows, width, to.columns);
  const auto before = [&](int64_t row) FOVEA_ALWAYS {
    prefetch_next(from, row, width.elements);
    if (to.natural == nullptr) return;
    copy_row<T, P>(rows[row], width.elements, width.pitch, to.natural + row * width.pitch);
  };
  if (to.rows != nullptr) {
    rows_to_rows<T, P>(rows, width, to.rows, before);
  } else if (to.natural != nullptr) {
    for (int64_t row = 0; row < kPanel; ++row) before(row);
  }
#else
  Word* const natural = to.natural != nullptr ? to.natural : scratch;
  for (int64_t row = 0; row < kPanel; ++row) {
    prefetch_next(from, row, width.elements);
    const T* const at = panel_row(from, row);
    copy_row<T, P>(at, at != nullptr ? width.elements : 0, width.pitch,
                   natural + row * width.pitch);
  }
  if (to.columns != nullptr) natural_to_columns(natural, width.pitch, to.columns);
  if (to.rows != nullptr) natural_to_rows(natural, width.pitch, width.columns, to.rows);
#endif
}

}  // namespace
}  // namespace fovea::kernels
