// Products by matrix tiles (AMX, bfloat16): a thin layer over eight instructions.
//
// TileSums is a kRows x 16 N block of sums: 2 x N tiles of 16 x 16. An operand tile is 16 rows of
// 16 words, which is how the packed layouts lie anyway (attention_product.h): natural rows on the
// left, columns or rows of pairs on the right.
//
// With FOVEA_TILES_EMULATED the tiles are arrays and TDPBF16PS is a loop with its order of sums, so
// that everything around the instructions is tested on CPUs without them.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/attention_pack.h"

namespace fovea::kernels {
namespace {

#if defined(FOVEA_TILES)

constexpr int kTileRows = 16, kTileWords = 16;
static_assert(kRows == 2 * kTileRows && kLanes == kTileWords);

/// Pairs of bfloat16 whose products tiles make; vectors do the rest.
struct TilePair : Pair {
  static constexpr bool kTiles = true;
};

#if defined(FOVEA_TILES_EMULATED)

struct TileUse {};

template <int N>
class TileSums {
 public:
  void clear() { __builtin_memset(sums_, 0, sizeof sums_); }
  void load(const float* from, int64_t row) {
    for (int i = 0; i < kRows; ++i) __builtin_memcpy(sums_[i], from + i * row, sizeof sums_[i]);
  }
  void store(float* to, int64_t row) const {
    for (int i = 0; i < kRows; ++i) __builtin_memcpy(to + i * row, sums_[i], sizeof sums_[i]);
  }
  /// Sums += left[kRows][16 steps] right[16 steps][16 N], in words; rows `a_row` and `b_row` words
  /// apart.
  void add(int64_t steps, const Word* a, int64_t a_row, const Word* b, int64_t b_row) {
    for (int64_t step = 0; step < steps; ++step) {
      for (int i = 0; i < kRows; ++i) {
        for (int j = 0; j < N * kTileWords; ++j) {
          float even = 0.0f, odd = 0.0f;  // the instruction sums the halves apart
          for (int k = 0; k < kTileWords; ++k) {
            const uint32_t x = bits(a[i * a_row + step * kTileWords + k]);
            const uint32_t y = bits(b[(step * kTileWords + k) * b_row + j]);
            even += low(x) * low(y);
            odd += high(x) * high(y);
          }
          sums_[i][j] += even + odd;
        }
      }
    }
  }

 private:
  static uint32_t bits(Word x) { return __builtin_bit_cast(uint32_t, x); }
  static float low(uint32_t x) { return __builtin_bit_cast(float, x << 16); }
  static float high(uint32_t x) { return __builtin_bit_cast(float, x & 0xFFFF0000u); }

  float sums_[kRows][N * kTileWords];
};

#else

/// While it lives, this thread's eight tiles are 16 rows of 64 bytes.
class TileUse {
 public:
  TileUse() {
    alignas(64) struct {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } shapes;
    static_assert(sizeof shapes == 64);
    _tile_loadconfig(&shapes);
  }
  ~TileUse() { _tile_release(); }
  TileUse(const TileUse&) = delete;
  TileUse& operator=(const TileUse&) = delete;
};

// GCC's tile intrinsics do not say that they read and write memory.
FOVEA_INLINE void tile_fence() { asm volatile("" ::: "memory"); }

// Tiles 0 to 3 are the sums, 4 and 5 the left operand, 6 and 7 the right one. Only one TileSums
// lives at a time.
template <int N>
class TileSums {
 public:
  FOVEA_INLINE void clear() {
    _tile_zero(0);
    _tile_zero(2);
    if constexpr (N == 2) {
      _tile_zero(1);
      _tile_zero(3);
    }
  }
  FOVEA_INLINE void load(const float* from, int64_t row) {
    const float* below = from + kTileRows * row;
    tile_fence();
    _tile_loadd(0, from, row * 4);
    _tile_loadd(2, below, row * 4);
    if constexpr (N == 2) {
      _tile_loadd(1, from + kTileWords, row * 4);
      _tile_loadd(3, below + kTileWords, row * 4);
    }
  }
  FOVEA_INLINE void store(float* to, int64_t row) const {
    float* below = to + kTileRows * row;
    _tile_stored(0, to, row * 4);
    _tile_stored(2, below, row * 4);
    if constexpr (N == 2) {
      _tile_stored(1, to + kTileWords, row * 4);
      _tile_stored(3, below + kTileWords, row * 4);
    }
    tile_fence();
  }
  /// Sums += left[kRows][16 steps] right[16 steps][16 N], in words; rows `a_row` and `b_row` words
  /// apart.
  FOVEA_INLINE void add(int64_t steps, const Word* a, int64_t a_row, const Word* b, int64_t b_row) {
    tile_fence();
    for (int64_t step = 0; step < steps; ++step) {
      _tile_loadd(4, a, a_row * 4);
      _tile_loadd(5, a + kTileRows * a_row, a_row * 4);
      _tile_loadd(6, b, b_row * 4);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (N == 2) {
        _tile_loadd(7, b + kTileWords, b_row * 4);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
      }
      a += kTileWords;
      b += kTileWords * b_row;
    }
  }
};

#endif

/// [16 pairs][32] words to [32][16 pairs]: dS^T as rows of queries.
FOVEA_INLINE void turn_pairs(Word* words) {
  __m512i left[16], right[16];
  for (int i = 0; i < 16; ++i) {
    left[i] = _mm512_loadu_si512(words + 32 * i);
    right[i] = _mm512_loadu_si512(words + 32 * i + 16);
  }
  transpose(left);
  transpose(right);
  for (int i = 0; i < 16; ++i) {
    _mm512_storeu_si512(words + 16 * i, left[i]);
    _mm512_storeu_si512(words + 256 + 16 * i, right[i]);
  }
}

#else

struct TileUse {};

#endif

/// s = left[kRows rows] . right[columns of a panel, or with N = 1 of half of it] over a packed
/// width. Tiles make whole panels.
template <class P, int N>
FOVEA_INLINE void panel_products(Float (&s)[kRows][N], const PackedWidth& width, const Word* left,
                                 const Word* right) {
  if constexpr (P::kTiles) {
#if defined(FOVEA_TILES)
    static_assert(N == 2);
    TileSums<2> sums;
    sums.clear();
    sums.add(width.pitch / kTileWords, left, width.pitch, right, kPanel);
    sums.store(reinterpret_cast<float*>(s), kPanel);
#endif
  } else {
    clear(s);
    multiply_add<P>(s, width.words, left, width.pitch, 1, right, kPanel);
  }
}

/// The sums of kRows rows and N vectors of columns at `at`, `row` floats apart: loads them (zeros
/// where they have not `begun`), lets `visit` call add(words, a, a_row, a_step, b) for products
/// over `words` words, stores them.
template <class P, int N, class Visit>
FOVEA_INLINE void add_to_sums(float* at, int64_t row, bool begun, const Visit& visit) {
  if constexpr (P::kTiles) {
#if defined(FOVEA_TILES)
    TileSums<N> sums;
    begun ? sums.load(at, row) : sums.clear();
    visit([&](int64_t words, const Word* a, int64_t a_row, int64_t, const Word* b)
              FOVEA_ALWAYS { sums.add(words / kTileWords, a, a_row, b, N * kLanes); });
    sums.store(at, row);
#endif
  } else {
    Float c[kRows][N];
    begun ? load_tile(c, at, row) : clear(c);
    visit([&](int64_t words, const Word* a, int64_t a_row, int64_t a_step, const Word* b)
              FOVEA_ALWAYS { multiply_add<P>(c, words, a, a_row, a_step, b, N * kLanes); });
    store_tile(c, at, row);
  }
}

}  // namespace
}  // namespace fovea::kernels
