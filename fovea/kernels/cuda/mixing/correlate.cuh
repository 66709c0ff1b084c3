// Gradients of kernels: correlations of score gradients with scores on tensor cores.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/mixing/convolve.cuh"

namespace fovea::kernels::cuda::mixing {

// Kernel gradient: acc[pair][cc] (16 x 8) += X^T Y over the warp's 16 rows, X at offsets 2 pair, 2
// pair + 1 and chunk n-1+cc, Y chunk n. y_rows: rows of Y that count (even; 16 or more: all).
// Element (m, u): offset 2 pair + m/8, key distance 8cc + m%8 - u - 8.
template <bool DOC, int NO, int SX, int RX, int SY, int RY>
FOVEA_DEVICE void correlate(float (&acc)[9][4], Ring<SX, RX> x, int x_row, Ring<SY, RY> y,
                            int y_row, int first, int y_rows, uint32_t row_keep, bool border,
                            const Lane& ln) {
  uint32_t b[NO][2];
#pragma unroll
  for (int n = 0; n < NO; n += 2) {
    uint32_t r[4];
    load_matrix_transposed(r, y.at(first + n + ln.x_second) + (y_row + ln.x_row) * 16);
    if (y_rows < 16) {
      if (2 * ln.t >= y_rows) r[0] = r[2] = 0;
      if (8 + 2 * ln.t >= y_rows) r[1] = r[3] = 0;
    }
    b[n][0] = r[0];
    b[n][1] = r[1];
    b[n + 1][0] = r[2];
    b[n + 1][1] = r[3];
  }
  int lane_offset = (x_row + ln.y_row + ln.y_second) * 16;
#pragma unroll
  for (int c = -1; c <= NO; c++) {
    uint32_t col = x.at(first + c) + lane_offset;
#pragma unroll
    for (int pr = 0; pr < 3; pr++) {
      uint32_t a[4];
      load_matrix_transposed(a, col + pr * 32);
      if constexpr (DOC)
        if (border) {  // row_keep: 6 bits per row for the thread's rows 2t, 2t+1, 8+2t, 9+2t
#pragma unroll
          for (int e = 0; e < 4; e++) {
            int off = 2 * pr + (e & 1), r = (e >> 1) * 2;
            if (!(row_keep >> (r * 6 + off) & 1)) a[e] &= 0xffff0000u;
            if (!(row_keep >> (r * 6 + 6 + off) & 1)) a[e] &= 0xffffu;
          }
        }
#pragma unroll
      for (int cc = 0; cc < 3; cc++) {
        int n = c + 1 - cc;
        if (n >= 0 && n < NO) mma_half(acc[pr * 3 + cc], a, b[n][0], b[n][1]);
      }
    }
  }
}
// Bits for correlate: row i of Y (frame base, the warp's rows) may meet row i - 5 + e.
template <bool DOC>
FOVEA_DEVICE uint32_t correlate_keep(const Lane& ln, int base, int T, const int32_t* doc,
                                     bool& border) {
  uint32_t keep = 0xffffffu;
  border = false;
  if constexpr (DOC) {
    int cut = 0;
    for (int s = 0; s < 4; s++) {
      int i = base + ln.w * 16 + (s >> 1) * 8 + 2 * ln.t + (s & 1);
      if (i < 0 || i >= T) continue;
      for (int e = 0; e < kRowReach; e++)
        if (i - kHalo + e < doc[i]) keep &= ~(1u << (s * 6 + e)), cut = 1;
    }
    border = any_lane(cut != 0);
  }
  return keep;
}
// Sums the band of the accumulators into taps [cq][ck] of one head.
FOVEA_DEVICE void add_kernel_gradient(float* dst, const float (&acc)[9][4], Taps k, float factor,
                                      uint32_t scratch, const Lane& ln, int threads) {
  for (int x = thread_index(); x < k.queries * k.keys; x += threads)
    store_shared(scratch + x * 4, 0);
  sync_block();
  int older = (k.keys - 1) / 2;
#pragma unroll
  for (int i = 0; i < 9; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int a = (i / 3) * 2 + e / 2 - (kRowReach - k.queries),
          b = (i % 3) * 8 + ln.g - (ln.t * 2 + e % 2) - 8 + older;
      if (a >= 0 && b >= 0 && b < k.keys) add_shared(scratch + (a * k.keys + b) * 4, acc[i][e]);
    }
  sync_block();
  for (int x = thread_index(); x < k.queries * k.keys; x += threads)
    add_global(dst + x, bits_float(load_shared(scratch + x * 4)) * factor);
}

}  // namespace fovea::kernels::cuda::mixing
