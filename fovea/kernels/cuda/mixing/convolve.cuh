// The key-query convolution on tensor cores.
//
//   out[i, 8n+u] = sum_(e<6) sum_(k<24) in[i+e, 8(n-1)+k] band_e[k, u]
//
// band_e is a 24 x 8 Toeplitz band with the taps of one query offset. Two query offsets share one
// m16n8k16 product, so 16 x 8 outputs take 9 products; the band sits in 18 registers.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/mixing/seen_rows.cuh"

namespace fovea::kernels::cuda::mixing {

// Band of one head as B fragments, [5][lane][4] words (18 used). transposed: the adjoint
// convolution.
constexpr int kBandBytes = 5 * 32 * 16;
FOVEA_DEVICE void write_band(uint32_t dst, Taps k, int head, bool transposed, const Lane& ln) {
  const float* tap = k.data + (int64_t)head * k.queries * k.keys;
  int older = (k.keys - 1) / 2;
  for (int i = 0; i < 18; i++) {
    int e = (i / 6) * 2 + (i & 1), cc = (i / 2) % 3;
    float x[2];
    for (int u = 0; u < 2; u++) {
      int kk = cc * 8 + ln.t * 2 + u;
      int a = (transposed ? kHalo - e : e) - (kRowReach - k.queries),
          b = transposed ? 8 + ln.g + older - kk : kk - ln.g - 8 + older;
      x[u] = a >= 0 && b >= 0 && b < k.keys ? (k.data ? tap[a * k.keys + b] : 1.f) : 0.f;
    }
    store_shared(dst + ((i / 4) * 32 + ln.l) * 16 + (i % 4) * 4, pack_half(x[0], x[1]));
  }
}
struct Band {
  uint32_t r[20];
  FOVEA_DEVICE Band(uint32_t p, const Lane& ln) {
#pragma unroll
    for (int i = 0; i < 5; i++) {
      const uint4 v = load_shared_16(p + (i * 32 + ln.l) * 16);
      r[4 * i] = v.x, r[4 * i + 1] = v.y, r[4 * i + 2] = v.z, r[4 * i + 3] = v.w;
    }
  }
};

// A ring of score chunks in shared memory: [slots][rows][8]; slot = chunk mod slots (a power of
// two).
template <int SLOTS, int ROWS>
struct Ring {
  uint32_t p;
  static constexpr int bytes = SLOTS * ROWS * 16;
  FOVEA_DEVICE uint32_t at(int chunk) const { return p + (chunk & (SLOTS - 1)) * (ROWS * 16); }
  FOVEA_DEVICE void put(int chunk, int row, const Lane& ln, float x0, float x1, float y0,
                        float y1) const {  // rows row+g, row+g+8
    uint32_t q = at(chunk) + (row + ln.g) * 16 + ln.t * 4;
    store_shared(q, pack_half(x0, x1));
    store_shared(q + 128, pack_half(y0, y1));
  }
};

FOVEA_DEVICE void drop_rows(uint32_t (&a)[4], uint32_t keep,
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
  FOVEA_DEVICE Carry() {
#pragma unroll
    for (int i = 0; i < 8; i++) x[i / 4][i % 4] = 0.f;
  }
};
// Chunks first .. first+NO-1 of the convolution for the 16 rows at `row`, from the ring's columns
// first+1 .. first+NO (rows row .. row+20) and the carry of the columns before; the carry moves on
// by NO chunks.
template <bool DOC, int NO, int SLOTS, int ROWS>
FOVEA_DEVICE void convolve(float (&acc)[NO][4], Carry& carry, Ring<SLOTS, ROWS> in, int row,
                           int first, const Band& band, uint32_t keep, bool border,
                           const Lane& ln) {
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
      load_matrix(to[x], in.at(first + 1 + f / 3 + x * HALF) + lane_offset + f % 3 * 32);
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
        mma_half(sum[f / 3 + x * HALF + 2 - cc], a[f & 1][x], band.r[(pr * 3 + cc) * 2],
                 band.r[(pr * 3 + cc) * 2 + 1]);
  }
#pragma unroll
  for (int n = 0; n < NO + 2; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) (n < NO ? acc[n][e] : carry.x[n - NO][e]) = sum[n][e];
}
// The carry for outputs from chunk `first` on, where the columns before were not walked.
template <bool DOC, int SLOTS, int ROWS>
FOVEA_DEVICE void start_carry(Carry& carry, Ring<SLOTS, ROWS> in, int row, int first,
                              const Band& band, uint32_t keep, bool border, const Lane& ln) {
  int lane_offset = (row + ln.x_row + ln.x_second) * 16;
#pragma unroll
  for (int pr = 0; pr < 3; pr++) {
    uint32_t a[4], b[4];
    load_matrix(a, in.at(first - 1) + lane_offset + pr * 32);
    load_matrix(b, in.at(first) + lane_offset + pr * 32);
    if constexpr (DOC)
      if (border) {
        drop_rows(a, keep, 2 * pr);
        drop_rows(b, keep, 2 * pr);
      }
    mma_half(carry.x[0], a, band.r[pr * 6], band.r[pr * 6 + 1]);
    mma_half(carry.x[1], b, band.r[pr * 6], band.r[pr * 6 + 1]);
    mma_half(carry.x[0], b, band.r[pr * 6 + 2], band.r[pr * 6 + 3]);
  }
}

// Keeps of a step's scores, times `factor`, what the warp's rows see of the keys from `key` on.
template <bool DOC, int NO>
FOVEA_DEVICE void keep_seen(float (&acc)[NO][4], float factor, const SeenRows<DOC>& rows, int key,
                            const Lane& ln) {
  const bool full = rows.full(key, NO * 8);
#pragma unroll
  for (int n = 0; n < NO; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      acc[n][e] *= factor;
      if (!full && !rows.allowed(e / 2, key + n * 8 + ln.t * 2 + e % 2)) acc[n][e] = 0.f;
    }
}
// The same of logits: their weights by the lse of the thread's two rows, in units of log2.
template <bool DOC, int NO>
FOVEA_DEVICE void weights_of(float (&acc)[NO][4], const float (&lse2)[2], const SeenRows<DOC>& rows,
                             int key, const Lane& ln) {
  const bool full = rows.full(key, NO * 8);
#pragma unroll
  for (int n = 0; n < NO; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      acc[n][e] = exp2_fast(acc[n][e] * kLog2e - lse2[e / 2]);
      if (!full && !rows.allowed(e / 2, key + n * 8 + ln.t * 2 + e % 2)) acc[n][e] = 0.f;
    }
}
// A warp's scores into a ring, from its chunk `first` on.
template <int NO, int SLOTS, int ROWS>
FOVEA_DEVICE void put_step(Ring<SLOTS, ROWS> ring, int first, const float (&acc)[NO][4],
                           const Lane& ln) {
#pragma unroll
  for (int n = 0; n < NO; n++)
    ring.put(first + n, ln.w * 16, ln, acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
}
template <int NO, int SLOTS, int ROWS>
FOVEA_DEVICE void put_zeros(Ring<SLOTS, ROWS> ring, int first, const Lane& ln) {
#pragma unroll
  for (int n = 0; n < NO; n++) ring.put(first + n, ln.w * 16, ln, 0, 0, 0, 0);
}
// lse of the thread's two rows, in units of log2; 0 for rows that are not there.
template <bool DOC>
FOVEA_DEVICE void load_lse2(float (&lse2)[2], const float* lse, const SeenRows<DOC>& rows) {
#pragma unroll
  for (int r = 0; r < 2; r++) lse2[r] = rows.hi[r] < 0 ? 0.f : lse[rows.hi[r]] * kLog2e;
}
// A warp's rows of sums to bfloat16 rows of a tensor: row `row` of the block is query base + row.
template <int D>
FOVEA_DEVICE void write_rows(const Rows& to, int b, int h, const float (&sum)[D / 8][4], int base,
                             int rows, int T, const Lane& ln) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int row = ln.w * 16 + ln.g + 8 * r, i = base + row;
    if (row >= rows || i < 0 || i >= T) continue;
    uint16_t* out = const_cast<uint16_t*>(head_rows(to, b, h)) + i * to.row + ln.t * 2;
#pragma unroll
    for (int c = 0; c < D / 8; c++)
      *reinterpret_cast<uint32_t*>(out + c * 8) = pack(sum[c][2 * r], sum[c][2 * r + 1]);
  }
}
template <int N>
FOVEA_DEVICE void clear(float (&sum)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) sum[n][e] = 0.f;
}

}  // namespace fovea::kernels::cuda::mixing
