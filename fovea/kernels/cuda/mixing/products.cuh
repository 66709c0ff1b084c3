// Products of rows and keys into slabs, and of slabs with rows or keys:
//   tile_product_kernel   slab = factor rows keys^T for each head      (q k^T; dout v^T)
//   row_product_kernel    rows = slab keys for each head               (out; dq)
//   key_product_kernel    key sums += slab^T rows for each key head    (dv; dk)
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/mixing/launches.h"
#include "fovea/kernels/cuda/mixing/slab.cuh"

namespace fovea::kernels::cuda::mixing {

constexpr int kProductRows = 128, kProductSteps = 8;

// A block holds 128 rows and walks up to 8 key steps, with the next one in flight. MASK: zeros
// where a query does not see the key. limit: rows of the slab in use. scaled: times the bundle's
// power of two. grid (groups of 8 key steps, row tiles of 128 of the batch's heads)
template <int D, bool MASK>
FOVEA_KERNEL(256, 2)
tile_product_kernel(Problem p, Bundle u, Rows rows, Rows keys, Slab out, int row_tiles, int limit,
                    float factor, bool scaled) {
  constexpr int KT = kStep * Tile<D>::pitch;
  int rt = block_y() % row_tiles, h = block_y() / row_tiles % u.count,
      b = block_y() / row_tiles / u.count, T = p.length;
  int row = out.row0 + rt * kProductRows;
  int last_row = (limit < (rt + 1) * kProductRows ? out.row0 + limit : row + kProductRows) - 1;
  const int32_t* doc = documents(p, b);
  int s0 = block_x() * kProductSteps, s1 = s0 + kProductSteps,
      low = tile_first_step(doc, row / kStep, T);
  if (last_row > T - 1) last_row = T - 1;
  if (s0 < low) s0 = low;
  if (s1 > last_row / kStep + 1) s1 = last_row / kStep + 1;
  if (s0 >= s1) return;
  uint32_t a_tile = shared_base(), b_tile = a_tile + kProductRows * Tile<D>::pitch;
  Lane ln;
  uint32_t stage = b_tile + 2 * KT + ln.w * kStageBytes;
  const uint16_t* src = head_rows(keys, b, key_head(p, u.first + h));
  load_tile<D, kProductRows, 256>(a_tile, head_rows(rows, b, u.first + h), rows.row, row, T);
  load_tile<D, kStep, 256>(b_tile, src, keys.row, s0 * kStep, T);
  copy_commit();
  if (scaled) factor *= exp2_fast(u.exponent[b]);
  uint32_t a_lane = Tile<D>::at(a_tile, ln.w * 16 + ln.x_row, ln.x_second);
  for (int s = s0; s < s1; s++) {
    uint32_t cur = b_tile + ((s - s0) & 1) * KT;
    copy_wait<0>();
    sync_block();
    if (s + 1 < s1)
      load_tile<D, kStep, 256>(b_tile + ((s - s0 + 1) & 1) * KT, src, keys.row, (s + 1) * kStep, T);
    copy_commit();
    float acc[8][4];
    row_key_product<D, 8>(acc, a_lane, Tile<D>::at(cur, ln.y_row, ln.y_second));
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        acc[n][e] *= factor;
        if constexpr (MASK) {
          int i = row + ln.w * 16 + ln.g + 8 * (e / 2), j = s * kStep + n * 8 + ln.t * 2 + e % 2;
          if (i >= T || j > i || (doc && j < doc[i])) acc[n][e] = 0.f;
        }
      }
    uint32_t v[8][2];
    pack_halves(v, acc);
    int first = rt * kProductRows + ln.w * 16;
    store_scores(stage, v, out, b, first, h, s * kStep, limit - first, ln);
  }
}
template <int D>
constexpr int tile_product_shared() {
  return (kProductRows + 2 * kStep) * Tile<D>::pitch + 8 * kStageBytes;
}

constexpr int kProductStages = 3;
template <int D>
constexpr int product_shared() {
  return kProductStages * kStep * (Tile<kStep>::pitch + Tile<D>::pitch);
}

// acc += A (16 rows of a Tile<64>) x B (64 rows of a Tile<D>).
template <int D>
FOVEA_DEVICE void product_step(float (&acc)[D / 8][4], const uint32_t (&a)[4], uint32_t b_lane,
                               int kk) {
  uint32_t b[4];
#pragma unroll
  for (int c = 0; c < D / 8; c += 2) {
    load_matrix_transposed(b, Tile<D>::along(b_lane, c) + kk * 16 * Tile<D>::pitch);
    mma_bfloat(acc[c], a, b[0], b[1]);
    mma_bfloat(acc[c + 1], a, b[2], b[3]);
  }
}

// Owned rows alone are written. grid (heads of the batch, row tiles of the slab)
template <int D>
FOVEA_KERNEL(128, 3)
row_product_kernel(Problem p, Bundle u, Slab x, Rows keys, Rows out, Owned own) {
  constexpr int XT = kStep * Tile<kStep>::pitch, STAGE = XT + kStep * Tile<D>::pitch;
  int h = block_x() % u.count, b = block_x() / u.count, rt = grid_y() - 1 - block_y(),
      row = x.row0 + rt * kStep, T = p.length;
  if (row >= own.end || row + kStep <= own.begin) return;
  uint32_t sm = shared_base();
  Lane ln;
  const uint16_t* src = head_rows(keys, b, key_head(p, u.first + h));
  int s0 = tile_first_step(documents(p, b), row / kStep, T), s1 = row / kStep + 1;
  float acc[D / 8][4];
  clear(acc);
  auto load = [&](int s) {
    uint32_t at = sm + (s - s0) % kProductStages * STAGE;
    if (s < s1) {
      load_slab_tile(at, x, b, h, rt * kStep, s * kStep);
      load_tile<D, kStep, 128>(at + XT, src, keys.row, s * kStep, T);
    }
    copy_commit();
  };
  for (int s = s0; s < s0 + kProductStages - 1; s++) load(s);
  for (int s = s0; s < s1; s++) {
    uint32_t cur = sm + (s - s0) % kProductStages * STAGE;
    copy_wait<kProductStages - 2>();
    sync_block();
    load(s + kProductStages - 1);
    uint32_t a_lane = Tile<kStep>::at(cur, ln.w * 16 + ln.x_row, ln.x_second),
             b_lane = Tile<D>::at(cur + XT, ln.x_row, ln.x_second);
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
      uint32_t a[4];
      load_matrix(a, Tile<kStep>::along(a_lane, 2 * kk));
      product_step<D>(acc, a, b_lane, kk);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int i = row + ln.w * 16 + ln.g + 8 * r;
    if (i < own.begin || i >= own.end) continue;
    uint16_t* d = const_cast<uint16_t*>(head_rows(out, b, u.first + h)) + i * out.row + ln.t * 2;
#pragma unroll
    for (int c = 0; c < D / 8; c++)
      *reinterpret_cast<uint32_t*>(d + c * 8) = pack(acc[c][2 * r], acc[c][2 * r + 1]);
  }
}

// One block sums all query heads of a key head, and slabs come one after the other, so that the
// order of the additions is fixed. Rows that are not owned have the slab's old contents.
// grid (key heads of the bundle and the batch, key tiles of 64)
template <int D>
FOVEA_KERNEL(128, 3)
key_product_kernel(Problem p, Bundle u, Slab x, Rows rows, float* out, Owned own) {
  constexpr int XT = kStep * Tile<kStep>::pitch, STAGE = XT + kStep * Tile<D>::pitch;
  int first_key_head = key_head(p, u.first),
      key_heads = key_head(p, u.first + u.count - 1) - first_key_head + 1,
      hk = first_key_head + block_x() % key_heads, b = block_x() / key_heads, kt = block_y(),
      T = p.length;
  int rep = p.heads / p.kv_heads, h0 = hk * rep - u.first, h1 = h0 + rep;
  if (h0 < 0) h0 = 0;
  if (h1 > u.count) h1 = u.count;
  const int32_t* doc = documents(p, b);
  uint32_t sm = shared_base();
  Lane ln;
  int first = own.begin / kStep, end = (own.end + kStep - 1) / kStep;  // row tiles
  if (first < kt) first = kt;
  while (end > first && tile_first_step(doc, end - 1, T) > kt) end--;
  if (first >= end) return;
  float acc[D / 8][4];
  clear(acc);
  int each = end - first, steps = each * (h1 - h0);
  auto load = [&](int s) {
    uint32_t at = sm + s % kProductStages * STAGE;
    if (s < steps) {
      int h = h0 + s / each, rt = first + s % each;
      load_slab_tile(at, x, b, h, rt * kStep - x.row0, kt * kStep);
      load_tile<D, kStep, 128>(at + XT, head_rows(rows, b, u.first + h), rows.row, rt * kStep, T);
    }
    copy_commit();
  };
  for (int s = 0; s < kProductStages - 1; s++) load(s);
  for (int s = 0; s < steps; s++) {
    uint32_t cur = sm + s % kProductStages * STAGE;
    int rt = first + s % each;
    copy_wait<kProductStages - 2>();
    sync_block();
    load(s + kProductStages - 1);
    uint32_t a_lane = Tile<kStep>::at(cur, ln.y_row, 2 * ln.w + ln.y_second),
             b_lane = Tile<D>::at(cur + XT, ln.x_row, ln.x_second);
    int live0 = own.begin - rt * kStep, live1 = own.end - rt * kStep;
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
      uint32_t a[4];
      load_matrix_transposed(a, a_lane + kk * 16 * Tile<kStep>::pitch);
      if (live0 > 0 || live1 < kStep) {  // columns of A: rows 2t, 2t+1 | 8+2t, 9+2t of the slab
        auto keep = [&](int r) {
          return (r >= live0 && r < live1 ? 0xffffu : 0u) |
                 (r + 1 >= live0 && r + 1 < live1 ? 0xffff0000u : 0u);
        };
        uint32_t m0 = keep(kk * 16 + ln.t * 2), m1 = keep(kk * 16 + ln.t * 2 + 8);
        a[0] &= m0;
        a[1] &= m0;
        a[2] &= m1;
        a[3] &= m1;
      }
      product_step<D>(acc, a, b_lane, kk);
    }
  }
  float* dst = out + ((int64_t)b * p.kv_heads + hk) * T * D;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int j = kt * kStep + ln.w * 16 + ln.g + 8 * r;
    if (j >= T) continue;
    float* d = dst + (int64_t)j * D + ln.t * 2;
#pragma unroll
    for (int c = 0; c < D / 8; c++) add_global_2(d + c * 8, acc[c][2 * r], acc[c][2 * r + 1]);
  }
}

}  // namespace fovea::kernels::cuda::mixing
