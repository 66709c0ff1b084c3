// A key-query convolution of one window, in registers (spec 3.2 step 3c).
//
//   window: kHaloRows + kStripRows rows of kHistory + kStepKeys keys; a result lags by kKernelLag:
//
//             history        keys of this step
//           +--------+--------------------------------+
//      halo |        |                                |   rows before the strip
//           +--------+--------------------------------+
//     strip |   [ older | key | newer ]               |   result n is key  n - kKernelLag  of the
//           |   [ ck keys x cq rows   ]               |   step: it reads columns n + 8 - older ...
//           +--------+--------------------------------+
//
// kConvolutionRows results of all keys of a step are made together: a row is read once for up to cq
// of them. Taps are added row by row from the oldest, key by key: the same order, hence the same
// bits, wherever a row lies in its strip.
//
// A window holds float32, or words of two neighbouring keys as bfloat16, (x[j - 1], x[j]), for
// vdpbf16ps. A product then takes two taps of a row: 11 taps are 6 products. The backward pass
// makes these words from rows of bfloat16 in order (HalfRows).
//
// With matrix tiles a window is rows of bfloat16 in order, and a kernel row is a band. A product of
// 16 x 32 numbers and a 32 x 16 matrix gives 16 results of 16 rows. Column j of the matrix holds
// the taps from row j + 8 - older on.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/mixing/mixing_seen.h"
#include "fovea/kernels/cpu/pointwise/attention_tiles.h"

namespace fovea::kernels {
namespace {

// kConvolutionRows x kConvolutionVectors sums, as many inputs and a tap must fit the registers.
constexpr int kConvolutionRows = 6;
constexpr int kConvolutionVectors = kRegisters == 32 ? 4 : 2;
static_assert(kStripRows % kConvolutionRows == 0 && kStepVectors % kConvolutionVectors == 0);

/// A kernel over `rows` rows that end at the current one, in words of P: tap n of a row meets
/// column `first` + n P::kElements, counted from the result's own.
struct Taps {
  const Word* taps = nullptr;  ///< [rows][words]
  int64_t rows = 0, words = 0;
  int64_t first = 0;

  /// The taps of the last `count` rows.
  Taps last(int64_t count) const { return {taps + (rows - count) * words, count, words, first}; }
};

/// Float32 taps as they stand.
FOVEA_INLINE Taps single_taps(const float* taps, int64_t rows, int64_t keys) {
  return {taps, rows, keys, -((keys - 1) / 2)};
}

/// Two numbers as bfloat16, the second one in the upper half.
FOVEA_INLINE Float word_of(Float low, Float high) {
  const auto rounded = [](Float x) FOVEA_ALWAYS { return reinterpret_cast<Int>(x) + 0x8000; };
  const Bits lower = reinterpret_cast<Bits>(rounded(low)) >> 16;
  return reinterpret_cast<Float>((reinterpret_cast<Bits>(rounded(high)) & 0xFFFF0000u) | lower);
}
FOVEA_INLINE float word_of(float low, float high) {
  const uint32_t lower = (__builtin_bit_cast(uint32_t, low) + 0x8000u) >> 16;
  return __builtin_bit_cast(float,
                            ((__builtin_bit_cast(uint32_t, high) + 0x8000u) & 0xFFFF0000u) | lower);
}

/// Rounded to bfloat16, as word_of() rounds.
FOVEA_INLINE Float as_bfloat16(Float x) {
  return reinterpret_cast<Float>((reinterpret_cast<Int>(x) + 0x8000) & ~0xFFFF);
}

FOVEA_INLINE float upper_half(Word word) {
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, word) & 0xFFFF0000u);
}

/// Taps in pairs. With an odd number of keys the first pair is (0, tap 0).
FOVEA_INLINE Taps paired(const Word* words, int64_t rows, int64_t keys) {
  return {words, rows, (keys + 1) / 2, 1 - keys % 2 - (keys - 1) / 2};
}
inline void write_paired_taps(const float* taps, int64_t rows, int64_t keys, Word* words) {
  const int64_t count = (keys + 1) / 2;
  for (int64_t n = 0; n < rows * count; ++n) {
    const int64_t a = n / count, high = 2 * (n % count) + 1 - keys % 2;  // in the upper half
    words[n] = word_of(high > 0 ? taps[a * keys + high - 1] : 0.0f, taps[a * keys + high]);
  }
}

/// Words of the taps of a kernel row for P, of windows that P's convolutions read, and of a step in
/// them.
template <class P>
constexpr int64_t tap_words(int64_t keys) {
  if constexpr (P::kTiles) return kLanes * kLanes;
  return P::kElements == 2 ? (keys + 1) / 2 : keys;
}
template <class P>
constexpr int64_t kWindowStep = P::kTiles ? kStepKeys / 2 : kStepKeys;

/// Taps of a kernel whose results read `older` keys before their own, as words of P, a type with
/// pairs.
template <class P>
void write_taps(const float* taps, int64_t rows, int64_t keys, [[maybe_unused]] int64_t older,
                Word* words) {
  if constexpr (P::kTiles) {
    const auto tap = [&](int64_t a, int64_t b) {
      return b >= 0 && b < keys ? taps[a * keys + b] : 0.0f;
    };
    for (int64_t n = 0; n < rows * tap_words<P>(keys); ++n) {
      const int64_t a = n / (kLanes * kLanes), pair = n / kLanes % kLanes, result = n % kLanes;
      const int64_t b = 2 * pair - result - 8 + older;
      words[n] = word_of(tap(a, b), tap(a, b + 1));
    }
  } else {
    write_paired_taps(taps, rows, keys, words);
  }
}
template <class P>
FOVEA_INLINE Taps taps_of(const Word* words, int64_t rows, int64_t keys) {
  if constexpr (P::kTiles) return {words, rows, tap_words<P>(keys), 0};
  return P::kElements == 2 ? paired(words, rows, keys) : single_taps(words, rows, keys);
}

/// Rows of words, from the first one that a result reads.
template <class P>
struct WordRows {
  const Word* first = nullptr;

  FOVEA_INLINE Float words(int64_t row, int64_t b, int64_t lane) const {
    return load(first + row * kWindowPitch + b * P::kElements + lane);
  }
};

/// Numbers of a row: a window, and what a load of a whole vector reads behind it.
constexpr int64_t kHalfPitch = kWindowPitch + kLanes;

/// Rows of bfloat16; a word is made of a number and the next one.
struct HalfRows {
  const uint16_t* first = nullptr;

  FOVEA_INLINE Float words(int64_t row, int64_t b, int64_t lane) const {
    return Pair::neighbours(first + row * kHalfPitch + b * Pair::kElements + lane);
  }
};

// Row `row` of the window meets the results that it lies 0 to cq - 1 rows before.
template <class P, int cq, int row, class Rows>
FOVEA_INLINE void add_row(Float (&sums)[kConvolutionRows][kConvolutionVectors], const Rows& in,
                          int64_t at, const Taps& k) {
  constexpr int first = row - (cq - 1) > 0 ? row - (cq - 1) : 0;
  constexpr int last = row < kConvolutionRows - 1 ? row : kConvolutionRows - 1;
  for (int64_t b = 0; b < k.words; ++b) {
    Float input[kConvolutionVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kConvolutionVectors; ++v) input[v] = in.words(row, b, at + v * kLanes);
#pragma GCC unroll 8
    for (int result = first; result <= last; ++result) {
      const Float tap = broadcast(k.taps[(row - result) * k.words + b]);
#pragma GCC unroll 4
      for (int v = 0; v < kConvolutionVectors; ++v)
        sums[result][v] = P::multiply_add(tap, input[v], sums[result][v]);
    }
  }
  if constexpr (row + 1 < kConvolutionRows + cq - 1) add_row<P, cq, row + 1>(sums, in, at, k);
}

template <class P, int cq, class Rows>
void convolve_tile(const Rows& in, const Taps& k, float* out) {
  for (int64_t at = 0; at < kStepKeys; at += kConvolutionVectors * kLanes) {
    Float sums[kConvolutionRows][kConvolutionVectors] = {};
    add_row<P, cq, 0>(sums, in, at, k);
#pragma GCC unroll 8
    for (int r = 0; r < kConvolutionRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kConvolutionVectors; ++v)
        store(out + r * kStepKeys + at + v * kLanes, sums[r][v]);
    }
  }
}

/// kConvolutionRows rows of results, kStepKeys apart.
template <class P, class Rows>
FOVEA_INLINE void convolve_tiles(const Rows& in, const Taps& k, float* out) {
  switch (k.rows) {
    case 1:
      return convolve_tile<P, 1>(in, k, out);
    case 2:
      return convolve_tile<P, 2>(in, k, out);
    case 3:
      return convolve_tile<P, 3>(in, k, out);
    case 4:
      return convolve_tile<P, 4>(in, k, out);
    case 5:
      return convolve_tile<P, 5>(in, k, out);
    case 6:
      return convolve_tile<P, 6>(in, k, out);
    case 7:
      return convolve_tile<P, 7>(in, k, out);
    default:
      return convolve_tile<P, 8>(in, k, out);
  }
}

/// `row` is the window's row of the first result at the first key of the step.
template <class P>
FOVEA_INLINE void convolve_rows(const Word* row, const Taps& k, float* out) {
  convolve_tiles<P>(WordRows<P>{row - (k.rows - 1) * kWindowPitch - kKernelLag + k.first}, k, out);
}

/// One row of results, with any number of rows: at the borders of documents.
template <class P>
FOVEA_INLINE void convolve_row(const Word* row, const Taps& k, float* out) {
  const Word* const in = row - (k.rows - 1) * kWindowPitch - kKernelLag + k.first;
  for (int v = 0; v < kStepVectors; ++v) {
    Float sums{};
    for (int64_t a = 0; a < k.rows; ++a) {
      const Word* const x = in + a * kWindowPitch + v * kLanes;
      for (int64_t b = 0; b < k.words; ++b) {
        const Float tap = broadcast(k.taps[a * k.words + b]);
        sums = P::multiply_add(tap, load(x + b * P::kElements), sums);
      }
    }
    store(out + v * kLanes, sums);
  }
}

/// kTileRows rows of results, kStepKeys apart. `row_of(a)` is the row that meets kernel row a for
/// the first row of results; its neighbours follow `pitch` words apart. It holds bfloat16 in order,
/// from 8 keys before the first result's own on.
template <class RowOf>
FOVEA_INLINE void convolve_bands(const Taps& k, int64_t pitch, const RowOf& row_of, float* out) {
  zero_tile<0>();
  zero_tile<1>();
  zero_tile<2>();
  zero_tile<3>();
  for (int64_t a = 0; a < k.rows; ++a) {
    const Word* const in = row_of(a);
    read_tile<6>(k.taps + a * k.words, kTileWords);
    read_tile<4>(in, pitch);
    multiply_tiles<0, 4, 6>();
    read_tile<5>(in + kTileWords / 2, pitch);
    multiply_tiles<1, 5, 6>();
    read_tile<4>(in + kTileWords, pitch);
    multiply_tiles<2, 4, 6>();
    read_tile<5>(in + kTileWords / 2 * 3, pitch);
    multiply_tiles<3, 5, 6>();
  }
  write_tile<0>(out, kStepKeys);
  write_tile<1>(out + kTileWords, kStepKeys);
  write_tile<2>(out + 2 * kTileWords, kStepKeys);
  write_tile<3>(out + 3 * kTileWords, kStepKeys);
}

/// Calls redo(row) for each of kTileRows rows of results that is not finite: a band also multiplies
/// numbers that a result does not read, with 0.
template <class Redo>
FOVEA_INLINE void each_row_not_finite(const float* results, const Redo& redo) {
  Float all{};
  for (int64_t c = 0; c < kTileRows * kStepKeys; c += kLanes) all = load(results + c) * 0.0f + all;
  if (sum(all) == 0.0f) return;
  for (int64_t r = 0; r < kTileRows; ++r)
    if (!finite_lanes(results + r * kStepKeys, kStepKeys)) redo(r);
}

}  // namespace
}  // namespace fovea::kernels
