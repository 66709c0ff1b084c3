// Passes over rows around the backward mixing kernels.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/mixing/tile.cuh"

namespace fovea::kernels::cuda::mixing {

// norms of a head: largest |do_i|^2, |v_j|^2, |d_lse_i|. grid (heads of the batch, tiles of 64
// rows)
template <int D>
FOVEA_KERNEL(256, 1)
row_norms_kernel(Problem p) {
  int h = block_x() % p.heads, b = block_x() / p.heads, lane = thread_index() & 31, T = p.length;
  const uint16_t* const heads[2] = {head_rows(p.d_o, b, h), head_rows(p.v, b, key_head(p, h))};
  const int64_t row[2] = {p.d_o.row, p.v.row};
  float best[kNorms] = {0.f, 0.f, 0.f};
#pragma unroll
  for (int n = 0; n < 8; n++) {  // all loads in flight before the first sum
    int i = (block_y() * 8 + (thread_index() >> 5)) * 8 + n;
#pragma unroll
    for (int s = 0; s < 2; s++) {
      float x = 0.f;
#pragma unroll
      for (int c = 0; c < D; c += 64) {
        uint32_t y = i < T && c + lane * 2 < D
                         ? *reinterpret_cast<const uint32_t*>(heads[s] + i * row[s] + c + lane * 2)
                         : 0u;
        const float2 z = unpack(y);
        x += z.x * z.x + z.y * z.y;
      }
#pragma unroll
      for (int m = 16; m; m >>= 1) x += shuffle_xor(x, m);
      best[s] = max_of(best[s], x);
    }
    if (p.d_lse != nullptr && i < T)
      best[2] = max_of(best[2], absolute(p.d_lse[(int64_t)block_x() * T + i]));
  }
  if (lane == 0)
    for (int s = 0; s < kNorms; s++) max_global(p.norms + block_x() * kNorms + s, best[s]);
}

// Sums [b,g,j,D] to rows of bfloat16. grid (tiles of 4 rows, key heads, batch)
template <int D>
FOVEA_KERNEL(128, 1)
round_keys_kernel(Problem p, const float* sums, Rows to) {
  int j = block_x() * 4 + (thread_index() >> 5), lane = thread_index() & 31, g = block_y(),
      b = static_cast<int>(blockIdx.z);
  if (j >= p.length) return;
  const float* from = sums + (((int64_t)b * p.kv_heads + g) * p.length + j) * D;
  uint16_t* row = const_cast<uint16_t*>(head_rows(to, b, g)) + j * to.row;
  for (int c = lane * 2; c < D; c += 64)
    *reinterpret_cast<uint32_t*>(row + c) = pack(from[c], from[c + 1]);
}

}  // namespace fovea::kernels::cuda::mixing
