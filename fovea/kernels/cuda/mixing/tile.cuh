// Tiles in shared memory and products of them. Legend: R rows of a block (16 per warp), KB keys per
// step, D head size; a "chunk" is 8 keys in a row (or 8 of D).
//
// Two layouts, both free of bank conflicts for load_matrix at any row:
// - Tile, filled by copy_async_16 (rows of q, k, v, dout, of a slab): row after row, the pieces of
//   16 bytes of a row permuted within 64 or 128 bytes. Eight lanes then fill one line of 128 bytes
//   from one line of device memory: with scattered destinations the L2 cache gets one request for
//   every 16 bytes.
// - Rings of scores and tiles of weights, written by the warps: chunk after chunk, [row][8] each.
//   The earlier queries of a convolution are then 16 bytes away.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/mixing/half.cuh"
#include "fovea/kernels/cuda/mixing/problem.h"

namespace fovea::kernels::cuda::mixing {

// The rows of a tensor's head: of a query head, or of the key head that it reads.
FOVEA_DEVICE const uint16_t* head_rows(const Rows& x, int b, int64_t head) {
  return static_cast<const uint16_t*>(x.data) + b * x.batch + head * x.head;
}
FOVEA_DEVICE int key_head(const Problem& p, int h) { return h / (p.heads / p.kv_heads); }

// second; y: second then rows.
struct Lane {
  int l, w, g, t, x_row, x_second, y_row, y_second;
  FOVEA_DEVICE Lane() {
    l = thread_index() & 31;
    w = thread_index() >> 5;
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
  FOVEA_DEVICE static int permute(int row) { return D % 64 ? row >> 1 & 3 : row & 7; }
  FOVEA_DEVICE static uint32_t at(uint32_t tile, int row, int chunk) {
    return tile + row * pitch + ((chunk ^ permute(row)) << 4);
  }
  // From a lane's address at chunk 0 or 1 to the one `chunk` (even) further in the same row.
  FOVEA_DEVICE static uint32_t along(uint32_t lane, int chunk) {
    return (lane ^ (chunk * 16 & mask)) + (chunk * 16 & ~mask);
  }
};
// N rows of D bf16 values from row0 on; rows outside [0, T) become zeros.
template <int D, int N, int THREADS>
FOVEA_DEVICE void load_tile(uint32_t dst, const uint16_t* src, int64_t row_stride, int row0,
                            int T) {
  constexpr int C = D / 8;
  for (int x = thread_index(); x < N * C; x += THREADS) {
    int r = x / C, c = x % C, i = row0 + r;
    bool live = i >= 0 && i < T;
    copy_async_16(Tile<D>::at(dst, r, c), src + (live ? i : 0) * row_stride + c * 8, live);
  }
}

template <int THREADS>
FOVEA_DEVICE void zero_shared(uint32_t p, int bytes) {
  for (int x = thread_index() * 4; x < bytes; x += THREADS * 4) store_shared(p + x, 0);
}

// Band of one head as B fragments, [5][lane][4] words (18 used). transposed: the adjoint
// acc[n] += A (16 rows of a row tile, bf16) x B^T (8 keys n of a key tile): a product over D.
template <int D, int NO>
FOVEA_DEVICE void row_key_product(float (&acc)[NO][4], uint32_t a_lane, uint32_t b_lane) {
#pragma unroll
  for (int n = 0; n < NO; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) acc[n][e] = 0.f;
#pragma unroll
  for (int kk = 0; kk < D / 16; kk++) {
    uint32_t a[4], b[4];
    load_matrix(a, Tile<D>::along(a_lane, 2 * kk));
#pragma unroll
    for (int n = 0; n < NO; n += 2) {
      load_matrix(b, Tile<D>::along(b_lane, 2 * kk) + n * 8 * Tile<D>::pitch);
      mma_bfloat(acc[n], a, b[0], b[1]);
      mma_bfloat(acc[n + 1], a, b[2], b[3]);
    }
  }
}
// The same with A already in registers.
template <int D, int NO>
FOVEA_DEVICE void row_key_product(float (&acc)[NO][4], const uint32_t (&a)[D / 16][4],
                                  uint32_t b_lane) {
#pragma unroll
  for (int n = 0; n < NO; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) acc[n][e] = 0.f;
#pragma unroll
  for (int kk = 0; kk < D / 16; kk++) {
    uint32_t b[4];
#pragma unroll
    for (int n = 0; n < NO; n += 2) {
      load_matrix(b, Tile<D>::along(b_lane, 2 * kk) + n * 8 * Tile<D>::pitch);
      mma_bfloat(acc[n], a[kk], b[0], b[1]);
      mma_bfloat(acc[n + 1], a[kk], b[2], b[3]);
    }
  }
}
// A fragments of 16 rows straight from device memory.
template <int D>
FOVEA_DEVICE void load_rows(uint32_t (&a)[D / 16][4], const uint16_t* src, int64_t row_stride,
                            int row, int T, const Lane& ln) {
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
FOVEA_DEVICE void weight_value_product(float (&acc)[D / 8][4], const uint32_t (&w)[NO][2],
                                       uint32_t v_lane) {
#pragma unroll
  for (int kk = 0; kk < NO / 2; kk++) {
    uint32_t a[4] = {w[2 * kk][0], w[2 * kk][1], w[2 * kk + 1][0], w[2 * kk + 1][1]}, b[4];
#pragma unroll
    for (int c = 0; c < D / 8; c += 2) {
      load_matrix_transposed(b, Tile<D>::along(v_lane, c) + kk * 16 * Tile<D>::pitch);
      mma_bfloat(acc[c], a, b[0], b[1]);
      mma_bfloat(acc[c + 1], a, b[2], b[3]);
    }
  }
}

}  // namespace fovea::kernels::cuda::mixing
