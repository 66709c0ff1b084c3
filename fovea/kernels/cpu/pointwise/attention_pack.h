// Rows of a tensor into the layouts of packed operands (attention_product.h).
//
// With masked loads, and in pairs, a panel goes from its rows straight into every layout. kLanes
// rows are loaded side by side, so that their cache misses overlap; two bfloat16 take one lane of a
// transposition. Elsewhere rows become `natural` first.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/pointwise/attention_product.h"

namespace fovea::kernels {
namespace {

constexpr int64_t kLineBytes = 64;

template <class P>
constexpr bool kPacksDirectly = kMaskedLoads || P::kElements == 2;

/// One row of a tensor as words, zeros behind it.
template <class T, class P>
FOVEA_INLINE void copy_row(const T* from, int64_t width, int64_t pitch, Word* to) {
  if constexpr (kPacksDirectly<P>) {
    for (int64_t c = 0; c < pitch; c += kLanes) {
      const int64_t at = c * P::kElements;
      const RowPart part = row_part(width - at);
      if constexpr (P::kElements == 1)
        store(to + c, load_row_floats(from + at, part));
      else
        store(to + c, load_row(from + at, part));
    }
  } else {
    for (int64_t c = 0; c < width; ++c) to[c] = to_float(from[c]);
    for (int64_t c = width; c < pitch; ++c) to[c] = 0.0f;
  }
}

// Panels straight from rows.

template <class T, class P>
FOVEA_INLINE void rows_to_columns(const T* const* rows, const PackedWidth& width, Word* columns) {
  constexpr int64_t kStep = 4 * kLanes / static_cast<int64_t>(sizeof(T));  // elements of a vector
  constexpr int64_t kWords = kStep / P::kElements;                         // as packed
  for (int64_t word = 0; word < width.pitch; word += kWords) {
    const int64_t c = word * P::kElements;
    const RowPart part = row_part(width.elements - c);
    for (int half = 0; half < kPanel; half += kLanes) {
      Float r[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) r[i] = load_row(rows[half + i] + c, part);
      transpose(r);
      Word* to = columns + word * kPanel + half;
      if constexpr (kWords == kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) store(to + i * kPanel, r[i]);
      } else {  // lanes of two bfloat16 become two columns
        const auto split = [&](int i) FOVEA_ALWAYS {
          const Int both = reinterpret_cast<Int>(r[i]);
          store(to + 2 * i * kPanel, reinterpret_cast<Float>(both << 16));
          store(to + (2 * i + 1) * kPanel, reinterpret_cast<Float>(both & ~0xFFFF));
        };
#pragma GCC unroll 8
        for (int i = 0; i < kLanes / 2; ++i) split(i);
        if (width.pitch - word <= kLanes) continue;
#pragma GCC unroll 8
        for (int i = kLanes / 2; i < kLanes; ++i) split(i);
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
    const RowPart part = row_part(width.elements - tile),
                  more = row_part(width.elements - tile - kLanes);
    for (int64_t row = 0; row < kPanel; row += P::kElements) {
      for (int64_t n = row; tile == 0 && n < row + P::kElements; ++n) before(n);
      Float low, high{};
      if constexpr (P::kElements == 1) {
        low = load_row_floats(rows[row] + tile, part);
        if (whole) high = load_row_floats(rows[row] + tile + kLanes, more);
      } else {
        P::weave(load_row(rows[row] + tile, part), load_row(rows[row + 1] + tile, part), low, high);
      }
      store(to, low);
      if (whole) store(to + kLanes, high);
      to += whole ? kPanel : kLanes;
    }
  }
}

// Panels from natural rows.

FOVEA_INLINE void natural_to_columns(const Word* natural, int64_t pitch, Word* columns) {
  for (int64_t c = 0; c < pitch; c += kLanes) {
    for (int half = 0; half < kPanel; half += kLanes) {
      Float r[kLanes];
#pragma GCC unroll 8
      for (int i = 0; i < kLanes; ++i) r[i] = load(natural + (half + i) * pitch + c);
      transpose(r);
#pragma GCC unroll 8
      for (int i = 0; i < kLanes; ++i) store(columns + (c + i) * kPanel + half, r[i]);
    }
  }
}

FOVEA_INLINE void natural_to_rows(const Word* natural, int64_t pitch, int64_t columns, Word* to) {
  for (int64_t tile = 0; tile < columns; tile += kPanel) {
    const int64_t width = columns - tile < kPanel ? columns - tile : kPanel;
    for (int64_t row = 0; row < kPanel; ++row, to += width) {
      for (int64_t c = 0; c < width; ++c) to[c] = natural[row * pitch + tile + c];
    }
  }
}

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

template <class T, class P>
FOVEA_INLINE void pack_directly(const PanelSource<T>& from, const PackedWidth& width,
                                const PanelLayouts& to) {
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
}

template <class T, class P>
FOVEA_INLINE void pack_by_natural(const PanelSource<T>& from, const PackedWidth& width,
                                  const PanelLayouts& to, Word* scratch) {
  Word* const natural = to.natural != nullptr ? to.natural : scratch;
  for (int64_t row = 0; row < kPanel; ++row) {
    prefetch_next(from, row, width.elements);
    const T* const at = panel_row(from, row);
    copy_row<T, P>(at, at != nullptr ? width.elements : 0, width.pitch,
                   natural + row * width.pitch);
  }
  if (to.columns != nullptr) natural_to_columns(natural, width.pitch, to.columns);
  if (to.rows != nullptr) natural_to_rows(natural, width.pitch, width.columns, to.rows);
}

/// Packs one panel into those layouts whose pointer is not null. `scratch` holds one natural panel.
template <class T, class P>
void pack_panel(const PanelSource<T>& from, const PackedWidth& width, const PanelLayouts& to,
                [[maybe_unused]] Word* scratch) {
  if constexpr (kPacksDirectly<P>)
    pack_directly<T, P>(from, width, to);
  else
    pack_by_natural<T, P>(from, width, to, scratch);
}

}  // namespace
}  // namespace fovea::kernels
