// Products by matrix tiles (AMX, bfloat16): a thin layer over six instructions.
//
// TileSums is a kRowsOfTiles x 16 N block of sums: 2 x N tiles of 16 x 16, or 1 x N. An operand
// tile is 16 rows of 16 words, which is how packed layouts lie anyway (attention_product.h):
// natural rows on the left, columns or rows of pairs on the right.
//
// With FOVEA_TILES_EMULATED the tiles are arrays and TDPBF16PS is a loop with its order of sums, so
// that everything around the instructions is tested on CPUs without them.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/simd/words.h"

namespace fovea::kernels {
namespace {

constexpr int kTileRows = 16, kTileWords = 16;

#if defined(FOVEA_TILES)

#if !defined(FOVEA_ROW_TILES)
#define FOVEA_ROW_TILES 2
#endif
constexpr int kRowsOfTiles = kTileRows * FOVEA_ROW_TILES;
static_assert(kRowsOfTiles <= 2 * kTileRows && kLanes == kTileWords);

/// Pairs of bfloat16 whose products tiles make; vectors do the rest.
struct TilePair : Pair {
  static constexpr bool kTiles = true;
};

#if defined(FOVEA_TILES_EMULATED)

struct TileUse {};

struct EmulatedTile {
  float words[kTileRows][kTileWords];
};
thread_local EmulatedTile emulated_tiles_of_this_thread[8];

template <int tile>
EmulatedTile& tile_of() {
  return emulated_tiles_of_this_thread[tile];
}

template <int tile>
void zero_tile() {
  __builtin_memset(&tile_of<tile>(), 0, sizeof(EmulatedTile));
}
template <int tile>
void read_tile(const float* from, int64_t row) {
  for (int i = 0; i < kTileRows; ++i)
    __builtin_memcpy(tile_of<tile>().words[i], from + i * row, 4 * kTileWords);
}
template <int tile>
void write_tile(float* to, int64_t row) {
  for (int i = 0; i < kTileRows; ++i)
    __builtin_memcpy(to + i * row, tile_of<tile>().words[i], 4 * kTileWords);
}
template <int sums, int left, int right>
void multiply_tiles() {
  const auto bits = [](float x) { return __builtin_bit_cast(uint32_t, x); };
  const auto low = [](uint32_t x) { return __builtin_bit_cast(float, x << 16); };
  const auto high = [](uint32_t x) { return __builtin_bit_cast(float, x & 0xFFFF0000u); };
  const EmulatedTile &a = tile_of<left>(), &b = tile_of<right>();
  for (int i = 0; i < kTileRows; ++i) {
    float even[kTileWords] = {}, odd[kTileWords] = {};  // the instruction sums the halves apart
    for (int k = 0; k < kTileWords; ++k) {
      const uint32_t x = bits(a.words[i][k]);
      for (int j = 0; j < kTileWords; ++j) {
        const uint32_t y = bits(b.words[k][j]);
        even[j] += low(x) * low(y);
        odd[j] += high(x) * high(y);
      }
    }
    for (int j = 0; j < kTileWords; ++j) tile_of<sums>().words[i][j] += even[j] + odd[j];
  }
}

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
    // GCC's intrinsic names 8 of the 64 bytes as read; the compiler may leave out the others.
    asm volatile("ldtilecfg %0" ::"m"(shapes));
  }
  ~TileUse() { _tile_release(); }
  TileUse(const TileUse&) = delete;
  TileUse& operator=(const TileUse&) = delete;
};

// GCC's intrinsics take no template argument as the number of a tile, and do not say that they read
// and write memory.
template <int tile>
FOVEA_INLINE void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(tile));
}
/// `row`: words from one row to the next.
template <int tile>
FOVEA_INLINE void read_tile(const float* from, int64_t row) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(4 * row), "i"(tile) : "memory");
}
template <int tile>
FOVEA_INLINE void write_tile(float* to, int64_t row) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(4 * row), "i"(tile) : "memory");
}
/// sums += left right: the left rows and right columns are pairs.
template <int sums, int left, int right>
FOVEA_INLINE void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(left), "i"(right));
}

#endif

// Tiles 0 to 3 are the sums, 4 and 5 the left operand, 6 and 7 the right one. Only one TileSums
// lives at a time.
template <int N>
class TileSums {
 public:
  FOVEA_INLINE void clear() {
    each_sum([](auto tile, int, int) FOVEA_ALWAYS { zero_tile<tile()>(); });
  }
  FOVEA_INLINE void load(const float* from, int64_t row) {
    each_sum([&](auto tile, int i, int j)
                 FOVEA_ALWAYS { read_tile<tile()>(from + i * row + j, row); });
  }
  FOVEA_INLINE void store(float* to, int64_t row) const {
    each_sum([&](auto tile, int i, int j)
                 FOVEA_ALWAYS { write_tile<tile()>(to + i * row + j, row); });
  }
  /// Sums += left[kRows][16 steps] right[16 steps][16 N], in words; rows `a_row` and `b_row` words
  /// apart.
  FOVEA_INLINE void add(int64_t steps, const float* a, int64_t a_row, const float* b,
                        int64_t b_row) {
    for (int64_t step = 0; step < steps; ++step) {
      read_tile<4>(a, a_row);
      if constexpr (kTwoRows) read_tile<5>(a + kTileRows * a_row, a_row);
      read_tile<6>(b, b_row);
      multiply_tiles<0, 4, 6>();
      if constexpr (kTwoRows) multiply_tiles<2, 5, 6>();
      if constexpr (N == 2) {
        read_tile<7>(b + kTileWords, b_row);
        multiply_tiles<1, 4, 7>();
        if constexpr (kTwoRows) multiply_tiles<3, 5, 7>();
      }
      a += kTileWords;
      b += kTileWords * b_row;
    }
  }

 private:
  static constexpr bool kTwoRows = kRowsOfTiles == 2 * kTileRows;

  // Calls visit(tile, its first row, its first column).
  template <class Visit>
  static FOVEA_INLINE void each_sum(const Visit& visit) {
    visit(Tile<0>{}, 0, 0);
    if constexpr (N == 2) visit(Tile<1>{}, 0, kTileWords);
    if constexpr (kTwoRows) visit(Tile<2>{}, kTileRows, 0);
    if constexpr (kTwoRows && N == 2) visit(Tile<3>{}, kTileRows, kTileWords);
  }
  template <int tile>
  struct Tile {
    constexpr int operator()() const { return tile; }
  };
};

/// [16][16] words turned: rows `from_row` and `to_row` words apart.
FOVEA_INLINE void turn_tile(const float* from, int64_t from_row, float* to, int64_t to_row) {
  Float rows[16];
  for (int i = 0; i < 16; ++i) rows[i] = load(from + i * from_row);
  transpose(rows);
  for (int i = 0; i < 16; ++i) store(to + i * to_row, rows[i]);
}

/// [16 pairs][32] words to [32][16 pairs]: dS^T as rows of queries.
FOVEA_INLINE void turn_pairs(float* words) {
  Float left[16], right[16];
  for (int i = 0; i < 16; ++i) {
    left[i] = load(words + 32 * i);
    right[i] = load(words + 32 * i + 16);
  }
  transpose(left);
  transpose(right);
  for (int i = 0; i < 16; ++i) {
    store(words + 16 * i, left[i]);
    store(words + 256 + 16 * i, right[i]);
  }
}

using FastestWords = TilePair;

#else

// Never used: there are no tiles.
constexpr int kRowsOfTiles = 0;
struct TileUse {};
template <int tile>
void zero_tile() {}
template <int tile>
void read_tile(const float*, int64_t) {}
template <int tile>
void write_tile(float*, int64_t) {}
template <int sums, int left, int right>
void multiply_tiles() {}
template <int N>
struct TileSums {
  void clear() {}
  void load(const float*, int64_t) {}
  void store(float*, int64_t) const {}
  void add(int64_t, const float*, int64_t, const float*, int64_t) {}
};
FOVEA_INLINE void turn_tile(const float*, int64_t, float*, int64_t) {}
FOVEA_INLINE void turn_pairs(float*) {}
using FastestWords = VectorWords;

#endif

}  // namespace
}  // namespace fovea::kernels
