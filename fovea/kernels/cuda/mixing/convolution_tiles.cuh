// What the two kernels of the convolutions' backward pass share: their memory, their step of
// products, the sums of keys, and the power of two of the gradients.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/mixing/correlate.cuh"

namespace fovea::kernels::cuda::mixing {

// A power of two that brings the gradients of scores to at most 2^11, inside float16's range.
FOVEA_DEVICE float gradient_exponent(const float* norms) {
  const float rows =
      0.5f * (log2_fast(max_of(norms[0], 1e-30f)) + log2_fast(max_of(norms[1], 1e-30f)));
  return floor_of(11.f - max_of(rows, log2_fast(max_of(norms[2], 1e-30f))));
}

// dst[key, D] += W^T (keys x R rows, bf16, chunk-major [NO][W_ROWS]) x X (R rows from x_row of a
// row tile): each warp 16 keys and a part of D.
template <int D, int NW, int NO, int W_ROWS>
FOVEA_DEVICE void key_row_product(float* dst, uint32_t w_tile, uint32_t x_tile, int x_row, int key0,
                                  int T, const Lane& ln) {
  constexpr int GROUPS = NO / 2, PARTS = NW / GROUPS, C = D / 8 / PARTS;  // chunks of D per warp
  static_assert(C % 2 == 0 && GROUPS * PARTS == NW);
  int kg = ln.w % GROUPS, part = ln.w / GROUPS;
  float acc[C][4];
#pragma unroll
  for (int c = 0; c < C; c++)
#pragma unroll
    for (int e = 0; e < 4; e++) acc[c][e] = 0.f;
  uint32_t a_lane = w_tile + ((2 * kg + ln.y_second) * W_ROWS + ln.y_row) * 16;
  uint32_t b_lane[C / 2];
#pragma unroll
  for (int c = 0; c < C; c += 2)
    b_lane[c / 2] = Tile<D>::at(x_tile, x_row + ln.x_row, part * C + c + ln.x_second);
#pragma unroll
  for (int kk = 0; kk < NW; kk++) {
    uint32_t a[4], b[4];
    load_matrix_transposed(a, a_lane + kk * 256);
#pragma unroll
    for (int c = 0; c < C; c += 2) {
      load_matrix_transposed(b, b_lane[c / 2] + kk * 16 * Tile<D>::pitch);
      mma_bfloat(acc[c], a, b[0], b[1]);
      mma_bfloat(acc[c + 1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int j = key0 + kg * 16 + ln.g + 8 * r;
    if (j < 0 || j >= T) continue;
    float* d = dst + (int64_t)j * D + part * C * 8 + ln.t * 2;
#pragma unroll
    for (int c = 0; c < C; c++) add_global_2(d + c * 8, acc[c][2 * r], acc[c][2 * r + 1]);
  }
}

// Shared memory of both kernels.
template <int D, int NW, int KB>
struct BackwardTiles {
  static constexpr int R = NW * 16, NO = KB / 8, WR = R + 1;
  using S = Ring<2 * NO, R + 8>;  // scores that a kernel gradient reads again later
  using H = Ring<NO, R + 8>;      // scores of one step
  static constexpr int row_tile = (R + 8) * Tile<D>::pitch, key_tile = KB * Tile<D>::pitch,
                       w_tile = NO * WR * 16;
  static constexpr int value_shared =
      2 * row_tile + 2 * key_tile + w_tile + 3 * kBandBytes + 2 * S::bytes + H::bytes;
  static constexpr int score_shared =
      2 * row_tile + 3 * key_tile + w_tile + 3 * kBandBytes + 2 * S::bytes + H::bytes;
};

// A step's scores of both kinds into their rings: scale q k^T, and dout v^T times a power of two.
template <int D, int NO, bool DOC, class S, class G>
FOVEA_DEVICE void put_scores_and_gradients(S s, G g, int t, uint32_t q_lane, uint32_t k_lane,
                                           uint32_t do_lane, uint32_t v_lane, float scale,
                                           float g_scale, const SeenRows<DOC>& rs,
                                           const SeenRows<DOC>& rg, const Lane& ln) {
  float acc[NO][4];
  const int key = t * NO * 8;
  row_key_product<D, NO>(acc, q_lane, k_lane);
  keep_seen(acc, scale, rs, key, ln);
  put_step(s, t * NO, acc, ln);
  row_key_product<D, NO>(acc, do_lane, v_lane);
  keep_seen(acc, g_scale, rg, key, ln);
  put_step(g, t * NO, acc, ln);
}
// A step's weights or gradients to a tile of bfloat16, chunk after chunk.
template <int NO, int WR>
FOVEA_DEVICE void put_tile(uint32_t tile, uint32_t (&a)[NO][2], const float (&acc)[NO][4],
                           const Lane& ln) {
#pragma unroll
  for (int n = 0; n < NO; n++) {
    a[n][0] = pack(acc[n][0], acc[n][1]);
    a[n][1] = pack(acc[n][2], acc[n][3]);
    const uint32_t at = tile + (n * WR + ln.w * 16 + ln.g) * 16 + ln.t * 4;
    store_shared(at, a[n][0]);
    store_shared(at + 128, a[n][1]);
  }
}

}  // namespace fovea::kernels::cuda::mixing
