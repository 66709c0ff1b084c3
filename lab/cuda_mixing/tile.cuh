// Tiles, masks and the key-query convolution on tensor cores, shared by the forward and backward
// kernels. Legend: R rows of a block (16 per warp), KB keys per step, D head width; a "chunk" is 8
// consecutive keys (or 8 of D).
//
// Two layouts in shared memory, both free of bank conflicts for ldmatrix at any row offset:
// - Tiles that cp.async fills (rows of q, k, v, do, of a slab): row-major, 2 D bytes a row, the
// 16-byte pieces of a row permuted inside 64
//   or 128 bytes (`Tile`). Eight lanes then fill one 128-byte line of shared memory from one line
//   of device memory: with scattered destinations cp.async sends the L2 cache one request per 16
//   bytes, and those requests were the limit of head mixing.
// - Score rings and the weights' tile, written by the warps: chunk-major, [chunk][row][8] values.
// The query offsets of the convolution are
//   then a shift of the address by 16 bytes.
//
// Convolution: out[i, 8n+u] = sum_{e<6} sum_{k<24} in[i+e, 8(n-1)+k] * band_e[k, u]. band_e is a 24
// x 8 Toeplitz band with taps of one query offset; two query offsets share one m16n8k16 product, so
// 9 products per 16 x 8 outputs; the band sits in 18 registers.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "prims.cuh"

struct Strides {
  int64_t b, h, t;
};  // elements; the last axis is contiguous

constexpr int kRowReach =
    6;  // query offsets of the band (kernels with fewer rows are padded with zeros)
constexpr int kHalo = kRowReach - 1;
constexpr float kLog2e = 1.4426950408889634f;

struct Taps {  // [H][cq][ck] float32; key offset b reads key j + b - (ck-1)/2
  const float* data;
  int cq, ck;
};

// First key step that any row from `base` on may see.
DEV int first_step(const int* doc, int base, int T, int KB) {
  return doc ? doc[base < 0 ? 0 : base >= T ? T - 1 : base] / KB : 0;
}

// One step's lane: (g, t) as in the mma fragment layouts; x: ldmatrix address order rows then
// second; y: second then rows.
struct Lane {
  int l, w, g, t, x_row, x_second, y_row, y_second;
  DEV Lane() {
    l = tid() & 31;
    w = tid() >> 5;
    g = l >> 2;
    t = l & 3;
    int m = l >> 3;
    x_row = (m & 1) * 8 + (l & 7);
    x_second = m >> 1;
    y_row = (m >> 1) * 8 + (l & 7);
    y_second = m & 1;
  }
};

template <int D>
struct Tile {  // begins at a multiple of 128
  static constexpr int pitch = 2 * D,
                       mask = D % 64 ? 0x30 : 0x70;  // mask: address bits that are permuted
  DEV static int permute(int row) { return D % 64 ? row >> 1 & 3 : row & 7; }
  DEV static saddr at(saddr tile, int row, int chunk) {
    return tile + row * pitch + ((chunk ^ permute(row)) << 4);
  }
  // From a lane's address at chunk 0 or 1 to the one `chunk` (even) further in the same row.
  DEV static saddr along(saddr lane, int chunk) {
    return (lane ^ (chunk * 16 & mask)) + (chunk * 16 & ~mask);
  }
};
// N rows of D bf16 values from row0 on; rows outside [0, T) become zeros.
template <int D, int N, int THREADS>
DEV void load_tile(saddr dst, const uint16_t* src, int64_t row_stride, int row0, int T) {
  constexpr int C = D / 8;
  for (int x = tid(); x < N * C; x += THREADS) {
    int r = x / C, c = x % C, i = row0 + r;
    bool live = i >= 0 && i < T;
    copy16(Tile<D>::at(dst, r, c), src + (live ? i : 0) * row_stride + c * 8, live);
  }
}

template <int THREADS>
DEV void zero_shared(saddr p, int bytes) {
  for (int x = tid() * 4; x < bytes; x += THREADS * 4) sts32(p + x, 0);
}

// Band of one head as B fragments, [5][lane][4] words (18 used). transposed: the adjoint
// convolution.
constexpr int kBandBytes = 5 * 32 * 16;
DEV void write_band(saddr dst, Taps k, int head, bool transposed, const Lane& ln) {
  const float* tap = k.data + (int64_t)head * k.cq * k.ck;
  int older = (k.ck - 1) / 2;
  for (int i = 0; i < 18; i++) {
    int e = (i / 6) * 2 + (i & 1), cc = (i / 2) % 3;
    float x[2];
    for (int u = 0; u < 2; u++) {
      int kk = cc * 8 + ln.t * 2 + u;
      int a = (transposed ? kHalo - e : e) - (kRowReach - k.cq),
          b = transposed ? 8 + ln.g + older - kk : kk - ln.g - 8 + older;
      x[u] = a >= 0 && b >= 0 && b < k.ck ? tap[a * k.ck + b] : 0.f;
    }
    sts32(dst + ((i / 4) * 32 + ln.l) * 16 + (i % 4) * 4, pack_f16(x[0], x[1]));
  }
}
struct Band {
  uint32_t r[20];
  DEV Band(saddr p, const Lane& ln) {
#pragma unroll
    for (int i = 0; i < 5; i++) lds128(r + 4 * i, p + (i * 32 + ln.l) * 16);
  }
};

// Allowed keys of the thread's two rows (g and g+8 of the warp's 16), and of all 16 at once.
// Rows outside [0, T) or at or beyond `limit` of the frame allow nothing.
template <bool DOC>
struct Rows {
  int hi[2], lo[2], all_hi, all_lo, any_hi;
  uint32_t keep;  // documents: bit 8*half + e: query offset e stays inside the document of the row
  bool border;    // some row of the warp has an offset to drop
  // back = true: offsets e read row i - 5 + e (convolution); false: row i + e (its adjoint)
  DEV void init(const Lane& ln, int base, int T, int limit, const int* doc, bool back) {
    int first = base + ln.w * 16, last = first + 15;
    bool whole = first >= 0 && last < T && ln.w * 16 + 15 < limit;
    all_hi = whole ? first : -1;
    any_hi = last < T ? last : T - 1;
    all_lo = 0;
    keep = ~0u;
    border = false;
    for (int s = 0; s < 2; s++) {
      int r = ln.w * 16 + ln.g + 8 * s, i = base + r;
      bool live = i >= 0 && i < T && r < limit;
      hi[s] = live ? i : -1;
      lo[s] = 0;
      if constexpr (DOC) {
        if (live) {
          lo[s] = doc[i];
          for (int e = 0; e < kRowReach; e++) {
            int other = back ? i - kHalo + e : i + e;
            bool same = back ? other >= lo[s] : other < T && doc[other] <= i;
            if (!same) keep &= ~(1u << (8 * s + e));
          }
        }
      }
    }
    if constexpr (DOC) {
      int top = lo[0] > lo[1] ? lo[0] : lo[1], cut = keep != ~0u;
      for (int m = 16; m; m >>= 1) {
        int o = shfl_xor(top, m);
        top = o > top ? o : top;
        cut |= shfl_xor(cut, m);
      }
      all_lo = top;
      border = cut != 0;
    }
  }
  DEV bool full(int key, int n) const { return key + n - 1 <= all_hi && key >= all_lo; }
  DEV bool none(int key) const { return key > any_hi; }
  DEV bool allowed(int s, int j) const { return j <= hi[s] && j >= lo[s]; }
};

// acc[n] += A (16 rows of a row tile, bf16) x B^T (8 keys n of a key tile): a product over D.
template <int D, int NO>
DEV void row_key_product(float (&acc)[NO][4], saddr a_lane, saddr b_lane) {
#pragma unroll
  for (int n = 0; n < NO; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) acc[n][e] = 0.f;
#pragma unroll
  for (int kk = 0; kk < D / 16; kk++) {
    uint32_t a[4], b[4];
    ldsm4(a, Tile<D>::along(a_lane, 2 * kk));
#pragma unroll
    for (int n = 0; n < NO; n += 2) {
      ldsm4(b, Tile<D>::along(b_lane, 2 * kk) + n * 8 * Tile<D>::pitch);
      mma_bf16(acc[n], a, b[0], b[1]);
      mma_bf16(acc[n + 1], a, b[2], b[3]);
    }
  }
}
// The same with A already in registers.
template <int D, int NO>
DEV void row_key_product(float (&acc)[NO][4], const uint32_t (&a)[D / 16][4], saddr b_lane) {
#pragma unroll
  for (int n = 0; n < NO; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) acc[n][e] = 0.f;
#pragma unroll
  for (int kk = 0; kk < D / 16; kk++) {
    uint32_t b[4];
#pragma unroll
    for (int n = 0; n < NO; n += 2) {
      ldsm4(b, Tile<D>::along(b_lane, 2 * kk) + n * 8 * Tile<D>::pitch);
      mma_bf16(acc[n], a[kk], b[0], b[1]);
      mma_bf16(acc[n + 1], a[kk], b[2], b[3]);
    }
  }
}
// A fragments of 16 rows straight from device memory.
template <int D>
DEV void load_rows(uint32_t (&a)[D / 16][4], const uint16_t* src, int64_t row_stride, int row,
                   int T, const Lane& ln) {
#pragma unroll
  for (int kk = 0; kk < D / 16; kk++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int i = row + ln.g + (e & 1) * 8;
      const uint16_t* p = src + i * row_stride + kk * 16 + (e >> 1) * 8 + ln.t * 2;
      a[kk][e] = i >= 0 && i < T ? *reinterpret_cast<const uint32_t*>(p) : 0u;
    }
}

// acc[16 rows, D] += A (16 rows x 16*NK keys, given as score accumulators' bf16 pairs) x V (keys x
// D).
template <int D, int NO>
DEV void weight_value_product(float (&acc)[D / 8][4], const uint32_t (&w)[NO][2], saddr v_lane) {
#pragma unroll
  for (int kk = 0; kk < NO / 2; kk++) {
    uint32_t a[4] = {w[2 * kk][0], w[2 * kk][1], w[2 * kk + 1][0], w[2 * kk + 1][1]}, b[4];
#pragma unroll
    for (int c = 0; c < D / 8; c += 2) {
      ldsm4t(b, Tile<D>::along(v_lane, c) + kk * 16 * Tile<D>::pitch);
      mma_bf16(acc[c], a, b[0], b[1]);
      mma_bf16(acc[c + 1], a, b[2], b[3]);
    }
  }
}

// A ring of score chunks in shared memory: [slots][rows][8]; slot = chunk mod slots (a power of
// two).
template <int SLOTS, int ROWS>
struct Ring {
  saddr p;
  static constexpr int bytes = SLOTS * ROWS * 16;
  DEV saddr at(int chunk) const { return p + (chunk & (SLOTS - 1)) * (ROWS * 16); }
  DEV void put(int chunk, int row, const Lane& ln, float x0, float x1, float y0,
               float y1) const {  // rows row+g, row+g+8
    saddr q = at(chunk) + (row + ln.g) * 16 + ln.t * 4;
    sts32(q, pack_f16(x0, x1));
    sts32(q + 128, pack_f16(y0, y1));
  }
};

DEV void drop_rows(uint32_t (&a)[4], uint32_t keep,
                   int e) {  // A fragment: rows g, g+8, of offsets e and e+1
  if (!(keep >> e & 1)) a[0] = 0;
  if (!(keep >> (8 + e) & 1)) a[1] = 0;
  if (!(keep >> (e + 1) & 1)) a[2] = 0;
  if (!(keep >> (9 + e) & 1)) a[3] = 0;
}

// Partial sums of the two chunks that a walk has not finished: the products of a column of scores
// reach three output chunks, and each column is read from shared memory once.
struct Carry {
  float x[2][4];
  DEV Carry() {
#pragma unroll
    for (int i = 0; i < 8; i++) x[i / 4][i % 4] = 0.f;
  }
};
// Chunks first .. first+NO-1 of the convolution for the 16 rows at `row`, from the ring's columns
// first+1 .. first+NO (rows row .. row+20) and the carry of the columns before; the carry moves on
// by NO chunks.
template <bool DOC, int NO, int SLOTS, int ROWS>
DEV void convolve(float (&acc)[NO][4], Carry& carry, Ring<SLOTS, ROWS> in, int row, int first,
                  const Band& band, uint32_t keep, bool border, const Lane& ln) {
  float sum[NO + 2][4];
#pragma unroll
  for (int n = 0; n < NO + 2; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) sum[n][e] = n < 2 ? carry.x[n][e] : 0.f;
  int lane_offset = (row + ln.x_row + ln.x_second) * 16;
  // Two columns half the width apart at a time, so that products in a row have accumulators of
  // their own; fragments one pair ahead.
  constexpr int HALF = NO / 2;
  uint32_t a[2][2][4];
  auto load = [&](uint32_t(&to)[2][4], int f) {
#pragma unroll
    for (int x = 0; x < 2; x++)
      ldsm4(to[x], in.at(first + 1 + f / 3 + x * HALF) + lane_offset + f % 3 * 32);
  };
  load(a[0], 0);
#pragma unroll
  for (int f = 0; f < HALF * 3; f++) {
    if (f + 1 < HALF * 3) load(a[(f + 1) & 1], f + 1);
    int pr = f % 3;
    if constexpr (DOC)
      if (border) {
        drop_rows(a[f & 1][0], keep, 2 * pr);
        drop_rows(a[f & 1][1], keep, 2 * pr);
      }
#pragma unroll
    for (int cc = 0; cc < 3; cc++)
#pragma unroll
      for (int x = 0; x < 2; x++)
        mma_f16(sum[f / 3 + x * HALF + 2 - cc], a[f & 1][x], band.r[(pr * 3 + cc) * 2],
                band.r[(pr * 3 + cc) * 2 + 1]);
  }
#pragma unroll
  for (int n = 0; n < NO + 2; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) (n < NO ? acc[n][e] : carry.x[n - NO][e]) = sum[n][e];
}
// The carry for outputs from chunk `first` on, where the columns before were not walked.
template <bool DOC, int SLOTS, int ROWS>
DEV void start_carry(Carry& carry, Ring<SLOTS, ROWS> in, int row, int first, const Band& band,
                     uint32_t keep, bool border, const Lane& ln) {
  int lane_offset = (row + ln.x_row + ln.x_second) * 16;
#pragma unroll
  for (int pr = 0; pr < 3; pr++) {
    uint32_t a[4], b[4];
    ldsm4(a, in.at(first - 1) + lane_offset + pr * 32);
    ldsm4(b, in.at(first) + lane_offset + pr * 32);
    if constexpr (DOC)
      if (border) {
        drop_rows(a, keep, 2 * pr);
        drop_rows(b, keep, 2 * pr);
      }
    mma_f16(carry.x[0], a, band.r[pr * 6], band.r[pr * 6 + 1]);
    mma_f16(carry.x[1], b, band.r[pr * 6], band.r[pr * 6 + 1]);
    mma_f16(carry.x[0], b, band.r[pr * 6 + 2], band.r[pr * 6 + 3]);
  }
}
