// Multi-Token Attention with key-query convolutions and head mixing, backward: the slab kernels
// that the other files lack. A frame of query rows passes through four slabs (the order is in
// conv_mix_launch.h):
//   mix_weights_kernel           w = exp(mix pre(s') - lse)                                  s' =
//   conv pre(s) mix_post_backward_kernel     z = mix post(y); dy = Mask0(mix post^T dz); d(mix
//   post)      y = conv post(w), dz = do v^T (scaled) conv_gradient_kernel         d(conv post) =
//   corr(dy, w); d(conv pre) = corr(ds', s) mix_softmax_backward_kernel  D_i = sum_j w dw; dl = w
//   (dw - D); ds' = mix pre^T dl; d(mix pre)
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "conv_backward.cuh"
#include "conv_mix.cuh"

// grid (rows, B)
KERNEL(kMixWarps * 32, 6) mix_weights_kernel(MixProblem p, Slab in, Slab out) {
  Lane ln;
  int row = grid_x() - 1 - block_x(), i = in.row0 + row, b = block_y();
  if (i >= p.T) return;
  saddr win = smem_base() + ln.w * 2 * kWindow, lane = Window::at(0, ln.y_row, ln.y_second);
  const uint16_t* line = in.line(b, row, 0);
  int lo = p.doc ? p.doc[(int64_t)b * p.T + i] : 0,
      s0 = tile_first_step(p.doc, b, i / kStep, p.T) + ln.w, s1 = i / kStep + 1;
  MixFragment pre(p.pre, false, ln);
  float lse2[4];  // heads 2t, 2t+1, 8+2t, 9+2t
#pragma unroll
  for (int q = 0; q < 4; q++)
    lse2[q] = p.lse[((int64_t)b * kHeads + (q / 2) * 8 + ln.t * 2 + q % 2) * p.T + i] * kLog2e;
  if (s0 < s1) load_window(win, line, in.pitch, s0 * kStep, ln);
  copy_commit();
  int turn = 0;
  for (int s = s0; s < s1; s += kMixWarps, turn ^= 1) {
    saddr cur = win + turn * kWindow;
    int key = s * kStep;
    if (s + kMixWarps < s1)
      load_window(win + (turn ^ 1) * kWindow, line, in.pitch, key + kMixWarps * kStep, ln);
    copy_commit();
    copy_wait<1>();
    sync_warp();
    bool full = key >= lo && key + kStep - 1 <= i;
#pragma unroll
    for (int c = 0; c < 8; c += 2) {
      uint32_t a[4];
      float y[2][4];
      ldsm4t(a, cur + Window::along(lane, c));
      mix(y, a, pre);
#pragma unroll
      for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          y[n][e] = exp2_fast(y[n][e] * kLog2e - lse2[n * 2 + e % 2]);
          int j = key + c * 8 + ln.g + 8 * (e / 2);
          if (!full && (j < lo || j > i)) y[n][e] = 0.f;
        }
      as_fragment(a, y);
      stsm4t(cur + Window::along(lane, c), a);
    }
    sync_warp();
    store_window(cur, out.line(b, row, 0), out.pitch, key, ln);
    sync_warp();
  }
}
constexpr int mix_weights_smem() { return kMixWarps * 2 * kWindow; }

// Sum of a 16 x 16 gradient over the block, added to device memory. sums: 1024 bytes of zeros, a
// barrier since.
DEV void add_matrix_gradient(float* dst, const float (&d)[2][4], float factor, saddr sums,
                             const Lane& ln, int threads) {
#pragma unroll
  for (int n = 0; n < 2; n++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      add_shared(sums + ((ln.g + 8 * (e / 2)) * kHeads + n * 8 + ln.t * 2 + e % 2) * 4, d[n][e]);
  sync_block();
  for (int e = tid(); e < kHeads * kHeads; e += threads)
    add1(dst + e, bits_float(lds32(sums + e * 4)) * factor);
}

// y -> z (bf16), dz -> dy, in place; blocks walk the rows. grid (any, B)
KERNEL(kMixBackwardWarps * 32, 2)
mix_post_backward_kernel(MixProblem p, Slab ys, Slab gs, int rows, int own0, int own1) {
  constexpr int THREADS = kMixBackwardWarps * 32;
  Lane ln;
  int b = block_y();
  saddr sums = smem_base(), win = sums + 1024 + ln.w * 4 * kWindow,
        lane = Window::at(0, ln.y_row, ln.y_second), lane_a = Window::at(0, ln.x_row, ln.x_second);
  zero_shared<THREADS>(sums, 1024);
  sync_block();
  float d_post[2][4] = {};
  MixFragment post(p.post, false, ln), post_t(p.post, true, ln);
  for (int row = rows - 1 - block_x(); row >= 0; row -= grid_x()) {
    int i = ys.row0 + row;
    uint16_t *yl = ys.line(b, row, 0), *gl = gs.line(b, row, 0);
    int lo = p.doc ? p.doc[(int64_t)b * p.T + i] : 0,
        s0 = tile_first_step(p.doc, b, i / kStep, p.T) + ln.w, s1 = i / kStep + 1, turn = 0;
    bool owned = i >= own0 && i < own1;
    if (s0 < s1) {
      load_window(win, yl, ys.pitch, s0 * kStep, ln);
      load_window(win + kWindow, gl, gs.pitch, s0 * kStep, ln);
    }
    copy_commit();
    for (int s = s0; s < s1; s += kMixBackwardWarps, turn ^= 1) {
      saddr cy = win + turn * 2 * kWindow, cg = cy + kWindow, next = win + (turn ^ 1) * 2 * kWindow;
      int key = s * kStep;
      if (s + kMixBackwardWarps < s1) {
        load_window(next, yl, ys.pitch, key + kMixBackwardWarps * kStep, ln);
        load_window(next + kWindow, gl, gs.pitch, key + kMixBackwardWarps * kStep, ln);
      }
      copy_commit();
      copy_wait<1>();
      sync_warp();
      bool full = key >= lo && key + kStep - 1 <= i;
#pragma unroll
      for (int c = 0; c < 8; c += 2) {
        uint32_t a[4], f[4], ga[4], yb[4];
        float z[2][4], dy[2][4];
        saddr ya = cy + Window::along(lane, c), za = cg + Window::along(lane, c);
        ldsm4t(a, ya);
        ldsm4(yb, ya);  // B: keys x heads of y
        ldsm4t(f, za);
        ldsm4(ga, cg + Window::along(lane_a, c));  // A: heads x keys of dz
        mix(z, a, post);
        mix(dy, f, post_t);
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
          for (int e = 0; e < 4; e++) {
            int j = key + c * 8 + ln.g + 8 * (e / 2);
            if (!full && (j < lo || j > i)) dy[n][e] = 0.f;
          }
        if (owned) {
#pragma unroll
          for (int n = 0; n < 2; n++) mma_f16(d_post[n], ga, yb[2 * n], yb[2 * n + 1]);
        }
        as_bf16(a, z, 1.f);
        as_fragment(f, dy);
        sync_warp();
        stsm4t(ya, a);
        stsm4t(za, f);
      }
      sync_warp();
      store_window(cy, yl, ys.pitch, key, ln);
      store_window(cg, gl, gs.pitch, key, ln);
      sync_warp();
    }
  }
  add_matrix_gradient(p.d_post, d_post, exp2_fast(-p.exponent[b * kHeads * 2]), sums, ln, THREADS);
}
constexpr int mix_post_backward_smem() { return 1024 + kMixBackwardWarps * 4 * kWindow; }

// s' and w stay; dw -> ds' in place. grid (any, B)
KERNEL(kMixBackwardWarps * 32, 2)
mix_softmax_backward_kernel(MixProblem p, Slab ss, Slab ws, Slab gs, int rows, int own0, int own1) {
  constexpr int THREADS = kMixBackwardWarps * 32;
  Lane ln;
  int b = block_y();
  saddr sums = smem_base(), shared = sums + 1024,
        win = shared + kMixBackwardWarps * 64 + ln.w * (6 * kWindow + 512),
        temp = win + 6 * kWindow;
  saddr lane = Window::at(0, ln.y_row, ln.y_second);
  saddr t_lane = (ln.y_second * 16 + ln.y_row) * 16, t_lane_a = (ln.x_second * 16 + ln.x_row) * 16;
  zero_shared<THREADS>(sums, 1024);
  sync_block();
  float d_pre[2][4] = {};
  MixFragment pre_t(p.pre, true, ln);
  for (int row = rows - 1 - block_x(); row >= 0; row -= grid_x()) {
    int i = ss.row0 + row;
    uint16_t *sl = ss.line(b, row, 0), *wl = ws.line(b, row, 0), *gl = gs.line(b, row, 0);
    int s0 = tile_first_step(p.doc, b, i / kStep, p.T) + ln.w,
        steps = (i / kStep - s0 + kMixBackwardWarps) / kMixBackwardWarps;
    bool owned = i >= own0 && i < own1;
    auto key_of = [&](int u) {
      return (s0 + (u < steps ? u : u - steps) * kMixBackwardWarps) * kStep;
    };
    auto load = [&](int u) {  // windows of w, dw and, in the second sweep, s'
      saddr at = win + (u & 1) * 3 * kWindow;
      if (u < 2 * steps) {
        load_window(at, wl, ws.pitch, key_of(u), ln);
        load_window(at + kWindow, gl, gs.pitch, key_of(u), ln);
        if (u >= steps) load_window(at + 2 * kWindow, sl, ss.pitch, key_of(u), ln);
      }
      copy_commit();
    };
    load(0);
    float delta[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int sweep = 0; sweep < 2; sweep++) {
      if (sweep == 1) {  // D_i: lanes, then warps
#pragma unroll
        for (int q = 0; q < 4; q++) {
          for (int d = 4; d < 32; d <<= 1) delta[q] += shfl_xor(delta[q], d);
          if (ln.g == 0)
            sts32(shared + ln.w * 64 + ((q / 2) * 8 + ln.t * 2 + q % 2) * 4, float_bits(delta[q]));
        }
        sync_block();
#pragma unroll
        for (int q = 0; q < 4; q++) {
          delta[q] = 0.f;
#pragma unroll
          for (int w = 0; w < kMixBackwardWarps; w++)
            delta[q] += bits_float(lds32(shared + w * 64 + ((q / 2) * 8 + ln.t * 2 + q % 2) * 4));
        }
      }
      for (int x = 0; x < steps; x++) {
        int u = sweep * steps + x;
        saddr cur = win + (u & 1) * 3 * kWindow;
        load(u + 1);
        copy_wait<1>();
        sync_warp();
#pragma unroll
        for (int c = 0; c < 8; c += 2) {
          uint32_t a[4], f[4], ta[4], sb[4];
          float w[2][4], dw[2][4];
          saddr at = Window::along(lane, c);
          ldsm4t(a, cur + at);
          ldsm4t(f, cur + kWindow + at);
#pragma unroll
          for (int n = 0; n < 2; n++)
#pragma unroll
            for (int u = 0; u < 2; u++) {
              unpack_f16(w[n][2 * u], w[n][2 * u + 1], a[2 * n + u]);
              unpack_f16(dw[n][2 * u], dw[n][2 * u + 1], f[2 * n + u]);
            }
          if (sweep == 0) {
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
              for (int e = 0; e < 4; e++) delta[n * 2 + e % 2] += w[n][e] * dw[n][e];
            continue;
          }
#pragma unroll
          for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) w[n][e] *= dw[n][e] - delta[n * 2 + e % 2];
          as_fragment(a, w);
          stsm4t(temp + t_lane, a);
          ldsm4(sb, cur + 2 * kWindow + at);  // B: keys x heads of s'
          mix(dw, a, pre_t);
          as_fragment(f, dw);
          sync_warp();
          stsm4t(cur + kWindow + at, f);
          ldsm4(ta, temp + t_lane_a);  // A: heads x keys of dl
          if (owned) {
#pragma unroll
            for (int n = 0; n < 2; n++) mma_f16(d_pre[n], ta, sb[2 * n], sb[2 * n + 1]);
          }
          sync_warp();
        }
        if (sweep == 1) store_window(cur + kWindow, gl, gs.pitch, key_of(u), ln);
        sync_warp();
      }
    }
    sync_block();  // the row's sums are read before the next row writes its own
  }
  add_matrix_gradient(p.d_pre, d_pre, exp2_fast(-p.exponent[b * kHeads * 2]), sums, ln, THREADS);
}
constexpr int mix_softmax_backward_smem() {
  return 1024 + kMixBackwardWarps * (64 + 6 * kWindow + 512);
}

// d_taps += corr(y, x) over the owned rows of y. grid (B * 16, row tiles of the frame)
template <bool DOC>
KERNEL(128, 3)
conv_gradient_kernel(Slab x, Slab y, Taps taps, float* d_taps, const int* docs, int own0, int own1,
                     int high, int T, const float* exponent) {
  using X = Ring<16, 73>;
  using Y = Ring<8, 73>;
  int h = block_x() % kHeads, b = block_x() / kHeads,
      row = x.row0 + (grid_y() - 1 - block_y()) * kStep;
  if (row >= own1 || row + kStep <= own0) return;
  const int* doc = DOC ? docs + (int64_t)b * T : nullptr;
  X xr{smem_base()};
  Y yr{xr.p + X::bytes};
  Lane ln;
  bool border;
  uint32_t keep = correlate_keep<DOC>(ln, row, T, doc, border);
  float acc[9][4];
#pragma unroll
  for (int i = 0; i < 9; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) acc[i][e] = 0.f;
  for (int s = tile_first_step(docs, b, row / kStep, T); s <= row / kStep; s++) {
    load_lines<72, 10, 128>(xr, x, b, h, row - kHalo, s * 8 - 1, x.row0, high, docs, T);
    load_lines<64, 8, 128>(yr, y, b, h, row, s * 8, own0, own1, docs, T);
    sync_block();
    correlate<DOC, 8>(acc, xr, ln.w * 16, yr, ln.w * 16, s * 8, 16, keep, border, ln);
    sync_block();
  }
  add_kernel_gradient(d_taps + (int64_t)h * taps.cq * taps.ck, acc, taps,
                      exp2_fast(-exponent[b * kHeads * 2]), xr.p, ln, 128);
}
constexpr int conv_gradient_smem() { return Ring<16, 73>::bytes + Ring<8, 73>::bytes; }
