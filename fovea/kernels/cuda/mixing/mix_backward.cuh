// Mixes and softmax of slabs, in place, backward, without convolutions: one kernel; with them, the
// stages around the convolutions of slabs.
//
// Blocks walk the rows of the slabs; 8 warps share the keys of one. Gradients of matrices are sums
// over blocks in no fixed order. Rows that are not owned are computed and not counted.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/mixing/mix_forward.cuh"
#include "fovea/kernels/cuda/mixing/products.cuh"

namespace fovea::kernels::cuda::mixing {

constexpr int kMixBackwardWarps = 8, kMixBackwardThreads = kMixBackwardWarps * 32;
using BackwardRow = MixRow<kMixBackwardWarps>;

// delta += w dw of a thread's heads.
FOVEA_DEVICE void add_delta(float (&delta)[4], const float (&w)[2][4], const float (&dw)[2][4]) {
#pragma unroll
  for (int n = 0; n < 2; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) delta[n * 2 + e % 2] += w[n][e] * dw[n][e];
}
FOVEA_DEVICE void softmax_gradient(float (&dl)[2][4], const float (&w)[2][4],
                                   const float (&dw)[2][4], const float (&delta)[4]) {
#pragma unroll
  for (int n = 0; n < 2; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) dl[n][e] = w[n][e] * (dw[n][e] - delta[n * 2 + e % 2]);
}

// s: scores -> ds (bfloat16); g: scaled dP3 -> P3 (bfloat16). grid (any, batch)
FOVEA_KERNEL(kMixBackwardThreads, 2)
mix_backward_kernel(Problem p, Bundle u, Slab xs, Slab xg, int rows) {
  Lane ln;
  int b = block_y();
  uint32_t sums = shared_base(), shared = sums + 2048,
           win = shared + 512 + ln.w * (4 * kWindow + 1024), temp = win + 4 * kWindow;
  zero_shared<kMixBackwardThreads>(sums, 2048);
  sync_block();
  float d_before[2][4], d_after[2][4];
  clear(d_before);
  clear(d_after);
  MixFragment before(u.before, false, ln), after(u.after, false, ln),
      before_turned(u.before, true, ln), after_turned(u.after, true, ln);
  uint32_t lane = Window::at(0, ln.y_row, ln.y_second),
           lane_a = Window::at(0, ln.x_row, ln.x_second),
           t_lane = (ln.y_second * 16 + ln.y_row) * 16,
           t_lane_a = (ln.x_second * 16 + ln.x_row) * 16;
  float unscale = exp2_fast(-u.exponent[b]), ds_factor = p.scale * unscale;
  for (int slab_row = rows - 1 - block_x(); slab_row >= 0; slab_row -= grid_x()) {
    const BackwardRow row(p, b, xs.row0 + slab_row, ln);
    uint16_t *sl = line_of(xs, b, slab_row, 0), *gl = line_of(xg, b, slab_row, 0);
    float lse2[4], delta[4] = {0.f, 0.f, 0.f, 0.f};
    load_head_lse2(lse2, p, u, b, row.i, ln);
    auto load = [&](int s) {
      uint32_t at = win + (s & 1) * 2 * kWindow;
      if (s < 2 * row.steps) {
        load_window(at, sl, xs, row.key_of(s), ln);
        load_window(at + kWindow, gl, xg, row.key_of(s), ln);
      }
      copy_commit();
    };
    load(0);
#pragma unroll
    for (int sweep = 0; sweep < 2; sweep++) {
      if (sweep == 1) sum_delta<kMixBackwardWarps>(delta, p, u, b, row.i, shared, ln);
      for (int n = 0; n < row.steps; n++) {
        int s = sweep * row.steps + n, key = row.key_of(s);
        uint32_t cs = win + (s & 1) * 2 * kWindow, cg = cs + kWindow;
        load(s + 1);
        copy_wait<1>();
        sync_warp();
#pragma unroll
        for (int c = 0; c < 8; c += 2) {
          uint32_t a[4], f[4], at = Window::along(lane, c);
          float w[2][4], dw[2][4];
          load_matrix_transposed(a, cs + at);
          mix(w, a, before);
          load_matrix_transposed(f, cg + at);
          mix(dw, f, after_turned);
          mixed_weights(w, lse2, row, key, c, ln);
          if (sweep == 0) {
            add_delta(delta, w, dw);
            continue;
          }
          uint32_t ga[4], sb[4], ta[4], tb[4];
          load_matrix(ga, cg + Window::along(lane_a, c));  // A: heads x keys of dP3
          load_matrix(sb, cs + at);                        // B: keys x heads of s
          as_fragment(a, w);
          store_matrix_transposed(temp + t_lane, a);
          float y[2][4];
          mix(y, a, after);
          as_bf16(a, y, 1.f);
          softmax_gradient(dw, w, dw, delta);
          as_fragment(f, dw);
          store_matrix_transposed(temp + 512 + t_lane, f);
          mix(y, f, before_turned);
          sync_warp();
          store_matrix_transposed(cg + at, a);
          as_bf16(a, y, ds_factor);
          store_matrix_transposed(cs + at, a);
          load_matrix(tb, temp + t_lane);          // B: keys x heads of w
          load_matrix(ta, temp + 512 + t_lane_a);  // A: heads x keys of dl
#pragma unroll
          for (int m = 0; m < 2; m++) {
            mma_half(d_after[m], ga, tb[2 * m], tb[2 * m + 1]);
            mma_half(d_before[m], ta, sb[2 * m], sb[2 * m + 1]);
          }
          sync_warp();
        }
        if (sweep == 1) {
          sync_warp();
          store_window(cs, sl, xs, key, ln);
          store_window(cg, gl, xg, key, ln);
        }
        sync_warp();
      }
    }
    sync_block();  // the row's sums are read before the next row writes its own
  }
  add_matrix_gradient(u.d_before, b, d_before, unscale, sums, ln, kMixBackwardThreads);
  add_matrix_gradient(u.d_after, b, d_after, unscale, sums + 1024, ln, kMixBackwardThreads);
}
constexpr int mix_backward_shared() {
  return 2048 + 512 + kMixBackwardWarps * (4 * kWindow + 1024);
}

// y -> z (bfloat16), dz -> dy. grid (any, batch)
FOVEA_KERNEL(kMixBackwardThreads, 2)
mix_after_backward_kernel(Problem p, Bundle u, Slab ys, Slab gs, int rows, Owned own) {
  Lane ln;
  int b = block_y();
  uint32_t sums = shared_base(), win = sums + 1024 + ln.w * 4 * kWindow,
           lane = Window::at(0, ln.y_row, ln.y_second),
           lane_a = Window::at(0, ln.x_row, ln.x_second);
  zero_shared<kMixBackwardThreads>(sums, 1024);
  sync_block();
  float d_after[2][4];
  clear(d_after);
  MixFragment after(u.after, false, ln), after_turned(u.after, true, ln);
  for (int slab_row = rows - 1 - block_x(); slab_row >= 0; slab_row -= grid_x()) {
    const BackwardRow row(p, b, ys.row0 + slab_row, ln);
    uint16_t *yl = line_of(ys, b, slab_row, 0), *gl = line_of(gs, b, slab_row, 0);
    bool owned = row.i >= own.begin && row.i < own.end;
    auto load = [&](int s) {
      uint32_t at = win + (s & 1) * 2 * kWindow;
      if (s < row.steps) {
        load_window(at, yl, ys, row.key_of(s), ln);
        load_window(at + kWindow, gl, gs, row.key_of(s), ln);
      }
      copy_commit();
    };
    load(0);
    for (int s = 0; s < row.steps; s++) {
      uint32_t cy = win + (s & 1) * 2 * kWindow, cg = cy + kWindow;
      int key = row.key_of(s);
      load(s + 1);
      copy_wait<1>();
      sync_warp();
#pragma unroll
      for (int c = 0; c < 8; c += 2) {
        uint32_t a[4], f[4], ga[4], yb[4];
        float z[2][4], dy[2][4];
        uint32_t ya = cy + Window::along(lane, c), za = cg + Window::along(lane, c);
        load_matrix_transposed(a, ya);
        load_matrix(yb, ya);  // B: keys x heads of y
        load_matrix_transposed(f, za);
        load_matrix(ga, cg + Window::along(lane_a, c));  // A: heads x keys of dz
        mix(z, a, after);
        mix(dy, f, after_turned);
        hide(dy, row, key, c, ln);
        if (owned) {
#pragma unroll
          for (int n = 0; n < 2; n++) mma_half(d_after[n], ga, yb[2 * n], yb[2 * n + 1]);
        }
        as_bf16(a, z, 1.f);
        as_fragment(f, dy);
        sync_warp();
        store_matrix_transposed(ya, a);
        store_matrix_transposed(za, f);
      }
      sync_warp();
      store_window(cy, yl, ys, key, ln);
      store_window(cg, gl, gs, key, ln);
      sync_warp();
    }
  }
  add_matrix_gradient(u.d_after, b, d_after, exp2_fast(-u.exponent[b]), sums, ln,
                      kMixBackwardThreads);
}
constexpr int mix_after_backward_shared() { return 1024 + kMixBackwardWarps * 4 * kWindow; }

// s' and w stay; dw -> ds'. grid (any, batch)
FOVEA_KERNEL(kMixBackwardThreads, 2)
mix_softmax_backward_kernel(Problem p, Bundle u, Slab ss, Slab ws, Slab gs, int rows, Owned own) {
  Lane ln;
  int b = block_y();
  uint32_t sums = shared_base(), shared = sums + 1024,
           win = shared + kMixBackwardWarps * 64 + ln.w * (6 * kWindow + 512),
           temp = win + 6 * kWindow;
  uint32_t lane = Window::at(0, ln.y_row, ln.y_second), t_lane = (ln.y_second * 16 + ln.y_row) * 16,
           t_lane_a = (ln.x_second * 16 + ln.x_row) * 16;
  zero_shared<kMixBackwardThreads>(sums, 1024);
  sync_block();
  float d_before[2][4];
  clear(d_before);
  MixFragment before_turned(u.before, true, ln);
  for (int slab_row = rows - 1 - block_x(); slab_row >= 0; slab_row -= grid_x()) {
    const BackwardRow row(p, b, ss.row0 + slab_row, ln);
    uint16_t *sl = line_of(ss, b, slab_row, 0), *wl = line_of(ws, b, slab_row, 0),
             *gl = line_of(gs, b, slab_row, 0);
    bool owned = row.i >= own.begin && row.i < own.end;
    auto load = [&](int s) {  // windows of w, dw and, in the second sweep, s'
      uint32_t at = win + (s & 1) * 3 * kWindow;
      if (s < 2 * row.steps) {
        load_window(at, wl, ws, row.key_of(s), ln);
        load_window(at + kWindow, gl, gs, row.key_of(s), ln);
        if (s >= row.steps) load_window(at + 2 * kWindow, sl, ss, row.key_of(s), ln);
      }
      copy_commit();
    };
    load(0);
    float delta[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int sweep = 0; sweep < 2; sweep++) {
      if (sweep == 1) sum_delta<kMixBackwardWarps>(delta, p, u, b, row.i, shared, ln);
      for (int x = 0; x < row.steps; x++) {
        int s = sweep * row.steps + x;
        uint32_t cur = win + (s & 1) * 3 * kWindow;
        load(s + 1);
        copy_wait<1>();
        sync_warp();
#pragma unroll
        for (int c = 0; c < 8; c += 2) {
          uint32_t a[4], f[4], ta[4], sb[4], at = Window::along(lane, c);
          float w[2][4], dw[2][4];
          load_matrix_transposed(a, cur + at);
          load_matrix_transposed(f, cur + kWindow + at);
#pragma unroll
          for (int n = 0; n < 2; n++)
#pragma unroll
            for (int m = 0; m < 2; m++) {
              unpack_half(w[n][2 * m], w[n][2 * m + 1], a[2 * n + m]);
              unpack_half(dw[n][2 * m], dw[n][2 * m + 1], f[2 * n + m]);
            }
          if (sweep == 0) {
            add_delta(delta, w, dw);
            continue;
          }
          softmax_gradient(w, w, dw, delta);
          as_fragment(a, w);
          store_matrix_transposed(temp + t_lane, a);
          load_matrix(sb, cur + 2 * kWindow + at);  // B: keys x heads of s'
          mix(dw, a, before_turned);
          as_fragment(f, dw);
          sync_warp();
          store_matrix_transposed(cur + kWindow + at, f);
          load_matrix(ta, temp + t_lane_a);  // A: heads x keys of dl
          if (owned) {
#pragma unroll
            for (int n = 0; n < 2; n++) mma_half(d_before[n], ta, sb[2 * n], sb[2 * n + 1]);
          }
          sync_warp();
        }
        if (sweep == 1) store_window(cur + kWindow, gl, gs, row.key_of(s), ln);
        sync_warp();
      }
    }
    sync_block();  // the row's sums are read before the next row writes its own
  }
  add_matrix_gradient(u.d_before, b, d_before, exp2_fast(-u.exponent[b]), sums, ln,
                      kMixBackwardThreads);
}
constexpr int mix_softmax_backward_shared() {
  return 1024 + kMixBackwardWarps * (64 + 6 * kWindow + 512);
}

}  // namespace fovea::kernels::cuda::mixing
