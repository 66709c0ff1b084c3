// Mixes and softmax of a slab, in place, forward.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/mixing/head_mix.cuh"
#include "fovea/kernels/cuda/mixing/launches.h"

namespace fovea::kernels::cuda::mixing {

constexpr int kMixWarps = 4;  // share the keys of one query row

// Running maxima and sums of a thread's four heads.
struct HeadSoftmax {
  float top[4], sum[4];

  FOVEA_DEVICE HeadSoftmax() {
#pragma unroll
    for (int q = 0; q < 4; q++) top[q] = -1e30f, sum[q] = 0.f;
  }
  // Mixed logits of keys j and j + 8.
  FOVEA_DEVICE void add(const float (&y)[2][4], const MixRow<kMixWarps>& row, bool full, int j) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int x = 0; x < 2; x++) {
        float y0 = y[n][x] * kLog2e, y1 = y[n][x + 2] * kLog2e;
        if (!full && row.hidden(j)) y0 = -1e30f;
        if (!full && row.hidden(j + 8)) y1 = -1e30f;
        int q = n * 2 + x;
        float m = max_of(top[q], max_of(y0, y1)), z = m > -1e29f ? m : 0.f;
        sum[q] = sum[q] * exp2_fast(top[q] - m) + exp2_fast(y0 - z) + exp2_fast(y1 - z);
        top[q] = m;
      }
  }
  // lse of the row in units of log2: over lanes, then over warps. shared: 128 bytes a warp.
  FOVEA_DEVICE void finish(float (&lse2)[4], uint32_t shared, const Lane& ln) {
#pragma unroll
    for (int q = 0; q < 4; q++) {
      float m = top[q], y = sum[q];
      for (int d = 4; d < 32; d <<= 1) m = max_of(m, shuffle_xor(m, d));
      y *= exp2_fast(top[q] - m);
      for (int d = 4; d < 32; d <<= 1) y += shuffle_xor(y, d);
      if (ln.g == 0) {
        store_shared(shared + (ln.w * 32 + head_of(ln, q)) * 4, float_bits(m));
        store_shared(shared + (ln.w * 32 + 16 + head_of(ln, q)) * 4, float_bits(y));
      }
    }
    sync_block();
#pragma unroll
    for (int q = 0; q < 4; q++) {
      int h = head_of(ln, q);
      float m = -1e30f, y = 0.f;
#pragma unroll
      for (int w = 0; w < kMixWarps; w++)
        m = max_of(m, bits_float(load_shared(shared + (w * 32 + h) * 4)));
#pragma unroll
      for (int w = 0; w < kMixWarps; w++)
        y += bits_float(load_shared(shared + (w * 32 + 16 + h) * 4)) *
             exp2_fast(bits_float(load_shared(shared + (w * 32 + h) * 4)) - m);
      lse2[q] = m + log2_fast(y);
    }
  }
};

// A block per query row, long rows first; two sweeps where there is a softmax. grid (rows, batch)
template <MixStage STAGE>
FOVEA_KERNEL(kMixWarps * 32, 6)
mix_forward_kernel(Problem p, Bundle u, Slab x) {
  Lane ln;
  int slab_row = grid_x() - 1 - block_x(), b = block_y();
  if (x.row0 + slab_row >= p.length) return;
  uint32_t shared = shared_base(), win = shared + kMixWarps * 128 + ln.w * 2 * kWindow,
           lane = Window::at(0, ln.y_row, ln.y_second);
  uint16_t* line = line_of(x, b, slab_row, 0);
  const MixRow<kMixWarps> row(p, b, x.row0 + slab_row, ln);
  MixFragment before(u.before, false, ln), after(u.after, false, ln);
  HeadSoftmax softmax;
  float lse2[4] = {0.f, 0.f, 0.f, 0.f};
  constexpr int FIRST = STAGE == MixStage::after ? 1 : 0;
  const int first = FIRST * row.steps;
  if (row.steps > 0) load_window(win + (first & 1) * kWindow, line, x, row.key_of(first), ln);
  copy_commit();
#pragma unroll
  for (int sweep = FIRST; sweep < 2; sweep++) {
    if (STAGE != MixStage::after && sweep == 1) {
      softmax.finish(lse2, shared, ln);
#pragma unroll
      for (int q = 0; q < 4; q++)
        if (ln.g == 0 && ln.w == 0 && head_of(ln, q) < u.count)
          p.lse[head_at(p, u, b, head_of(ln, q)) * p.length + row.i] = lse2[q] / kLog2e;
    }
    for (int n = 0; n < row.steps; n++) {
      int s = sweep * row.steps + n, key = row.key_of(s);
      uint32_t cur = win + (s & 1) * kWindow;
      if (s + 1 < 2 * row.steps)
        load_window(win + ((s + 1) & 1) * kWindow, line, x, row.key_of(s + 1), ln);
      copy_commit();
      copy_wait<1>();
      sync_warp();
      bool full = row.full(key);
#pragma unroll
      for (int c = 0; c < 8; c += 2) {
        uint32_t a[4], at = cur + Window::along(lane, c);
        float y[2][4];
        load_matrix_transposed(a, at);
        if constexpr (STAGE == MixStage::after) {
          mix(y, a, after);
          as_bf16(a, y, 1.f);
          store_matrix_transposed(at, a);
          continue;
        }
        mix(y, a, before);
        if (sweep == 0) {
          softmax.add(y, row, full, key + c * 8 + ln.g);
        } else {
          mixed_weights(y, lse2, row, key, c, ln);
          as_fragment(a, y);
          if constexpr (STAGE == MixStage::all) {
            mix(y, a, after);
            as_bf16(a, y, 1.f);
          }
          store_matrix_transposed(at, a);
        }
      }
      if (sweep == 1) {
        sync_warp();
        store_window(cur, line, x, key, ln);
      }
      sync_warp();
    }
  }
}
constexpr int mix_forward_shared() { return kMixWarps * (128 + 2 * kWindow); }

// The weights again, from logits and lse: exp(mix before(s1) - lse). grid (rows, batch)
FOVEA_KERNEL(kMixWarps * 32, 6) mix_weights_kernel(Problem p, Bundle u, Slab in, Slab out) {
  Lane ln;
  int slab_row = grid_x() - 1 - block_x(), b = block_y();
  if (in.row0 + slab_row >= p.length) return;
  uint32_t win = shared_base() + ln.w * 2 * kWindow, lane = Window::at(0, ln.y_row, ln.y_second);
  const uint16_t* line = line_of(in, b, slab_row, 0);
  const MixRow<kMixWarps> row(p, b, in.row0 + slab_row, ln);
  MixFragment before(u.before, false, ln);
  float lse2[4];
  load_head_lse2(lse2, p, u, b, row.i, ln);
  if (row.steps > 0) load_window(win, line, in, row.key_of(0), ln);
  copy_commit();
  for (int s = 0; s < row.steps; s++) {
    uint32_t cur = win + (s & 1) * kWindow;
    int key = row.key_of(s);
    if (s + 1 < row.steps)
      load_window(win + ((s + 1) & 1) * kWindow, line, in, row.key_of(s + 1), ln);
    copy_commit();
    copy_wait<1>();
    sync_warp();
#pragma unroll
    for (int c = 0; c < 8; c += 2) {
      uint32_t a[4];
      float y[2][4];
      load_matrix_transposed(a, cur + Window::along(lane, c));
      mix(y, a, before);
      mixed_weights(y, lse2, row, key, c, ln);
      as_fragment(a, y);
      store_matrix_transposed(cur + Window::along(lane, c), a);
    }
    sync_warp();
    store_window(cur, line_of(out, b, slab_row, 0), out, key, ln);
    sync_warp();
  }
}
constexpr int mix_weights_shared() { return kMixWarps * 2 * kWindow; }

}  // namespace fovea::kernels::cuda::mixing
