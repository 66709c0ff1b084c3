// Head mixing over 16 heads, forward and backward: talking heads, or the mixing stages of
// Multi-Token Attention.
//
// All 16 heads of a pair (i, j) meet twice (before and after the softmax). A block that keeps 16
// heads on chip has room for 16 query rows at D = 96 and reads K and V 2.25 bytes x 16 per score
// from the L2 cache. Here rows are taken in slabs instead: the slab's scores of all heads
// [b][row][16 heads][keys] (16-bit) lie in device memory, and kernels pass over them:
//   tile_product_kernel   X = factor * A_rows B_keys^T per head           (q k^T; do v^T)
//   mix_forward_kernel    a block per query row: mix, softmax, mix, in place
//   mix_backward_kernel   a block per query row: (s, dw') -> (ds, w'), gradients of both matrices
//   row_product_kernel    out_rows = X V per head                         (o; dq)
//   key_product_kernel    acc_keys += X^T Y per head, float32             (dv; dk)
// Memory: slab rows x 16 x T, linear in T.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "tile.cuh"

constexpr int kHeads = 16;
constexpr int kStep = 64;  // keys per step and rows per tile; slabs begin at multiples of it

struct Slab {  // [B][lead + rows][16][pitch], 16-bit
  uint16_t* x;
  int rows, pitch, row0;  // rows: allocated, without the lead; row0: query of row 0
  int lead = 0;           // rows kept from the previous slab, at row -lead .. -1
  DEV uint16_t* line(int b, int row, int h) const {
    return x + (((int64_t)b * (rows + lead) + row + lead) * kHeads + h) * pitch;
  }
};
struct Operand {
  const uint16_t* p;
  Strides s;
  int rep;
};  // bf16; head h uses h / rep

DEV int tile_first_step(const int* doc, int b, int row_tile,
                        int T) {  // first key step that a tile of 64 rows may see
  int i = row_tile * kStep;
  return doc && i < T ? doc[(int64_t)b * T + i] / kStep : 0;
}

// A warp's 16 rows x 64 keys of packed scores (pairs of rows g and g+8 of chunk n) to a slab,
// through its own part of shared memory, so that a store instruction fills whole lines. live: rows
// that count; chunks outside [0, pitch) are dropped.
constexpr int kStageBytes = 8 * 17 * 16;
DEV void store_scores(saddr stage, const uint32_t (&v)[8][2], const Slab& out, int b, int row,
                      int h, int key, int live, const Lane& ln) {
  sync_warp();
#pragma unroll
  for (int n = 0; n < 8; n++) {
    sts32(stage + (n * 17 + ln.g) * 16 + ln.t * 4, v[n][0]);
    sts32(stage + (n * 17 + ln.g + 8) * 16 + ln.t * 4, v[n][1]);
  }
  sync_warp();
#pragma unroll
  for (int x = 0; x < 4; x++) {
    int r = x * 4 + ln.l / 8, c = ln.l % 8, at = key + c * 8;
    uint32_t y[4];
    lds128(y, stage + (c * 17 + r) * 16);
    if (r < live && at >= 0 && at < out.pitch) store16(out.line(b, row + r, h) + at, y);
  }
}
// A block holds 128 rows and walks up to 8 key steps; two steps of keys in flight. MASK: zeros
// where a query may not see the key. limit: rows of the slab in use. grid (groups of 8 key steps, B
// * 16 * row tiles of 128)
constexpr int kProductRows = 128, kProductSteps = 8;
template <int D, bool MASK>
KERNEL(256, 2)
tile_product_kernel(Operand rows, Operand keys, Slab out, int row_tiles, int limit, const int* doc,
                    int T, float factor, const float* norms) {
  constexpr int KT = kStep * Tile<D>::pitch;
  int rt = block_y() % row_tiles, h = block_y() / row_tiles % kHeads,
      b = block_y() / row_tiles / kHeads;
  int row = out.row0 + rt * kProductRows, last_row = out.row0 + limit - 1 < row + kProductRows - 1
                                                         ? out.row0 + limit - 1
                                                         : row + kProductRows - 1;
  int s0 = block_x() * kProductSteps, s1 = s0 + kProductSteps,
      low = tile_first_step(doc, b, row / kStep, T);
  if (last_row > T - 1) last_row = T - 1;
  if (s0 < low) s0 = low;
  if (s1 > last_row / kStep + 1) s1 = last_row / kStep + 1;
  if (s0 >= s1) return;
  saddr a_tile = smem_base(), b_tile = a_tile + kProductRows * Tile<D>::pitch;
  Lane ln;
  saddr stage = b_tile + 2 * KT + ln.w * kStageBytes;
  const uint16_t* src = keys.p + b * keys.s.b + h / keys.rep * keys.s.h;
  load_tile<D, kProductRows, 256>(a_tile, rows.p + b * rows.s.b + h / rows.rep * rows.s.h, rows.s.t,
                                  row, T);
  load_tile<D, kStep, 256>(b_tile, src, keys.s.t, s0 * kStep, T);
  copy_commit();
  if (norms) factor *= exp2_fast(norms[b * kHeads * 2 + h * 2]);
  saddr a_lane = Tile<D>::at(a_tile, ln.w * 16 + ln.x_row, ln.x_second);
  for (int s = s0; s < s1; s++) {
    saddr cur = b_tile + ((s - s0) & 1) * KT;
    copy_wait_all();
    sync_block();
    if (s + 1 < s1)
      load_tile<D, kStep, 256>(b_tile + ((s - s0 + 1) & 1) * KT, src, keys.s.t, (s + 1) * kStep, T);
    copy_commit();
    float acc[8][4];
    row_key_product<D, 8>(acc, a_lane, Tile<D>::at(cur, ln.y_row, ln.y_second));
    uint32_t v[8][2];
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        acc[n][e] *= factor;
        if constexpr (MASK) {
          int i = row + ln.w * 16 + ln.g + 8 * (e / 2), j = s * kStep + n * 8 + ln.t * 2 + e % 2;
          if (i >= T || j > i || (doc && j < doc[(int64_t)b * T + i])) acc[n][e] = 0.f;
        }
      }
      v[n][0] = pack_f16(acc[n][0], acc[n][1]);
      v[n][1] = pack_f16(acc[n][2], acc[n][3]);
    }
    int first = rt * kProductRows + ln.w * 16;
    store_scores(stage, v, out, b, first, h, s * kStep, limit - first, ln);
  }
}
template <int D>
constexpr int tile_product_smem() {
  return (kProductRows + 2 * kStep) * Tile<D>::pitch + 8 * kStageBytes;
}

// A warp's window on one query row of a slab: 64 keys of 16 heads, a Tile<64> of 16 rows (heads).
using Window = Tile<kStep>;
constexpr int kWindow = kHeads * Window::pitch;
DEV void load_window(saddr d, const uint16_t* line, int pitch, int key, const Lane& ln) {
#pragma unroll
  for (int x = 0; x < 4; x++) {
    int piece = x * 32 + ln.l, h = piece / 8, c = piece % 8;
    copy16(Window::at(d, h, c), line + (int64_t)h * pitch + key + c * 8, true);
  }
}
DEV void store_window(saddr s, uint16_t* line, int pitch, int key, const Lane& ln) {
#pragma unroll
  for (int x = 0; x < 4; x++) {
    int piece = x * 32 + ln.l, h = piece / 8, c = piece % 8;
    uint32_t v[4];
    lds128(v, Window::at(s, h, c));
    store16(line + (int64_t)h * pitch + key + c * 8, v);
  }
}
// Matrix as B fragments: out[pair][n] = sum_k in[pair][k] W[n][k] (or W[k][n] when transposed).
struct MixFragment {
  uint32_t r[2][2];
  DEV MixFragment(const float* w, bool transposed, const Lane& ln) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int k = 0; k < 2; k++) {
        int o = n * 8 + ln.g, i = k * 8 + ln.t * 2;
        r[n][k] = transposed ? pack_f16(w[i * kHeads + o], w[(i + 1) * kHeads + o])
                             : pack_f16(w[o * kHeads + i], w[o * kHeads + i + 1]);
      }
  }
};
// y[n][e]: head 8n + 2t + e%2 of key g + 8(e/2), from A fragments of the same shape.
DEV void mix(float (&y)[2][4], const uint32_t (&a)[4], const MixFragment& m) {
#pragma unroll
  for (int n = 0; n < 2; n++) {
#pragma unroll
    for (int e = 0; e < 4; e++) y[n][e] = 0.f;
    mma_f16(y[n], a, m.r[n][0], m.r[n][1]);
  }
}
DEV void as_fragment(uint32_t (&a)[4], const float (&y)[2][4]) {
  a[0] = pack_f16(y[0][0], y[0][1]);
  a[1] = pack_f16(y[0][2], y[0][3]);
  a[2] = pack_f16(y[1][0], y[1][1]);
  a[3] = pack_f16(y[1][2], y[1][3]);
}
DEV void as_bf16(uint32_t (&a)[4], const float (&y)[2][4], float f) {
  a[0] = pack_bf16(y[0][0] * f, y[0][1] * f);
  a[1] = pack_bf16(y[0][2] * f, y[0][3] * f);
  a[2] = pack_bf16(y[1][0] * f, y[1][1] * f);
  a[3] = pack_bf16(y[1][2] * f, y[1][3] * f);
}

struct MixProblem {
  const float *pre, *post;  // [out][in] 16 x 16
  float* lse;               // [B][16][T]
  const int* doc;
  int B, T;
  float scale;
  const float* exponent;  // backward: [B][16][2], exponent[.][0]: power of two that scaled dw'
  float *d_pre, *d_post;  // backward, zero on entry
};

enum MixStage {
  kMixBoth,
  kMixSoftmaxOnly,
  kMixPostOnly
};                            // weights stay fp16 after kMixSoftmaxOnly; otherwise bf16 is written
constexpr int kMixWarps = 4;  // share the keys of one query row
// grid (slab rows, B)
template <MixStage STAGE>
KERNEL(kMixWarps * 32, 6)
mix_forward_kernel(MixProblem p, Slab x) {
  Lane ln;
  int row = grid_x() - 1 - block_x(), i = x.row0 + row, b = block_y();  // long rows first
  if (i >= p.T) return;
  saddr shared = smem_base(), win = shared + kMixWarps * 128 + ln.w * 2 * kWindow;
  uint16_t* line = x.line(b, row, 0);
  int lo = p.doc ? p.doc[(int64_t)b * p.T + i] : 0,
      s0 = tile_first_step(p.doc, b, i / kStep, p.T) + ln.w;
  int steps = (i / kStep - s0 + kMixWarps) / kMixWarps;  // of this warp: s0, s0 + kMixWarps, ...
  MixFragment pre(p.pre, false, ln), post(p.post, false, ln);
  float top[4], sum[4], lse2[4];  // heads 2t, 2t+1, 8+2t, 9+2t
#pragma unroll
  for (int q = 0; q < 4; q++) top[q] = -1e30f, sum[q] = 0.f, lse2[q] = 0.f;
  auto key_of = [&](int s) { return (s0 + (s < steps ? s : s - steps) * kMixWarps) * kStep; };
  const int first = STAGE == kMixPostOnly ? steps : 0;
  if (steps > 0) load_window(win + (first & 1) * kWindow, line, x.pitch, key_of(first), ln);
  copy_commit();
  saddr lane = Window::at(0, ln.y_row, ln.y_second);
#pragma unroll
  for (int sweep = STAGE == kMixPostOnly ? 1 : 0; sweep < 2; sweep++) {
    if (STAGE != kMixPostOnly && sweep == 1) {  // lse of the row: lanes, then warps
#pragma unroll
      for (int q = 0; q < 4; q++) {
        float m = top[q], y = sum[q];
        for (int d = 4; d < 32; d <<= 1) m = fmaxf(m, shfl_xor(m, d));
        y *= exp2_fast(top[q] - m);
        for (int d = 4; d < 32; d <<= 1) y += shfl_xor(y, d);
        int head = (q / 2) * 8 + ln.t * 2 + q % 2;
        if (ln.g == 0) {
          sts32(shared + (ln.w * 32 + head) * 4, float_bits(m));
          sts32(shared + (ln.w * 32 + 16 + head) * 4, float_bits(y));
        }
      }
      sync_block();
#pragma unroll
      for (int q = 0; q < 4; q++) {
        int head = (q / 2) * 8 + ln.t * 2 + q % 2;
        float m = -1e30f, y = 0.f;
#pragma unroll
        for (int w = 0; w < kMixWarps; w++)
          m = fmaxf(m, bits_float(lds32(shared + (w * 32 + head) * 4)));
#pragma unroll
        for (int w = 0; w < kMixWarps; w++)
          y += bits_float(lds32(shared + (w * 32 + 16 + head) * 4)) *
               exp2_fast(bits_float(lds32(shared + (w * 32 + head) * 4)) - m);
        lse2[q] = m + log2_fast(y);
        if (ln.g == 0 && ln.w == 0)
          p.lse[((int64_t)b * kHeads + head) * p.T + i] = lse2[q] / kLog2e;
      }
    }
    for (int u = 0; u < steps; u++) {
      int s = sweep * steps + u, key = key_of(s);
      saddr cur = win + (s & 1) * kWindow;
      if (s + 1 < 2 * steps)
        load_window(win + ((s + 1) & 1) * kWindow, line, x.pitch, key_of(s + 1), ln);
      copy_commit();
      copy_wait<1>();
      sync_warp();
      bool full = key >= lo && key + kStep - 1 <= i;
#pragma unroll
      for (int c = 0; c < 8; c += 2) {
        uint32_t a[4];
        float y[2][4];
        ldsm4t(a, cur + Window::along(lane, c));
        if constexpr (STAGE == kMixPostOnly) {
          mix(y, a, post);
          as_bf16(a, y, 1.f);
          stsm4t(cur + Window::along(lane, c), a);
          continue;
        }
        mix(y, a, pre);
        int j = key + c * 8 + ln.g;
        if (sweep == 0) {
#pragma unroll
          for (int n = 0; n < 2; n++)
#pragma unroll
            for (int u2 = 0; u2 < 2; u2++) {
              float y0 = y[n][u2] * kLog2e, y1 = y[n][u2 + 2] * kLog2e;
              if (!full) {
                if (j < lo || j > i) y0 = -1e30f;
                if (j + 8 < lo || j + 8 > i) y1 = -1e30f;
              }
              int q = n * 2 + u2;
              float m = fmaxf(top[q], fmaxf(y0, y1)), z = m > -1e29f ? m : 0.f;
              sum[q] = sum[q] * exp2_fast(top[q] - m) + exp2_fast(y0 - z) + exp2_fast(y1 - z);
              top[q] = m;
            }
        } else {
#pragma unroll
          for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
              y[n][e] = exp2_fast(y[n][e] * kLog2e - lse2[n * 2 + e % 2]);
              int jj = j + 8 * (e / 2);
              if (!full && (jj < lo || jj > i)) y[n][e] = 0.f;
            }
          as_fragment(a, y);
          if constexpr (STAGE == kMixBoth) {
            mix(y, a, post);
            as_bf16(a, y, 1.f);
          }
          stsm4t(cur + Window::along(lane, c), a);
        }
      }
      if (sweep == 1) {
        sync_warp();
        store_window(cur, line, x.pitch, key, ln);
      }
      sync_warp();
    }
  }
}
constexpr int mix_forward_smem() { return kMixWarps * (128 + 2 * kWindow); }

// s: logits -> ds (bf16); g: scaled dw' -> w' (bf16). blocks walk the slab's rows; 8 warps share
// the keys of a row. grid (any, B)
constexpr int kMixBackwardWarps = 8;
KERNEL(kMixBackwardWarps * 32, 2) mix_backward_kernel(MixProblem p, Slab xs, Slab xg, int rows) {
  Lane ln;
  int b = block_y();
  saddr base = smem_base(), shared = base + 2048, win = shared + 512 + ln.w * (4 * kWindow + 1024),
        temp = win + 4 * kWindow;
  for (int e = tid(); e < 512; e += kMixBackwardWarps * 32) sts32(base + e * 4, 0);
  sync_block();
  float d_pre[2][4], d_post[2][4];
#pragma unroll
  for (int n = 0; n < 2; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) d_pre[n][e] = d_post[n][e] = 0.f;
  MixFragment pre(p.pre, false, ln), post(p.post, false, ln), pre_t(p.pre, true, ln),
      post_t(p.post, true, ln);
  float ds_factor = p.scale * exp2_fast(-p.exponent[b * kHeads * 2]);
  for (int row = rows - 1 - block_x(); row >= 0; row -= grid_x()) {  // long rows first
    int i = xs.row0 + row;
    uint16_t *sl = xs.line(b, row, 0), *gl = xg.line(b, row, 0);
    int lo = p.doc ? p.doc[(int64_t)b * p.T + i] : 0,
        s0 = tile_first_step(p.doc, b, i / kStep, p.T) + ln.w;
    int steps = (i / kStep - s0 + kMixBackwardWarps) / kMixBackwardWarps;
    float lse2[4], delta[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int q = 0; q < 4; q++)
      lse2[q] = p.lse[((int64_t)b * kHeads + (q / 2) * 8 + ln.t * 2 + q % 2) * p.T + i] * kLog2e;
    auto key_of = [&](int s) {
      return (s0 + (s < steps ? s : s - steps) * kMixBackwardWarps) * kStep;
    };
    if (steps > 0) {
      load_window(win, sl, xs.pitch, key_of(0), ln);
      load_window(win + kWindow, gl, xg.pitch, key_of(0), ln);
    }
    copy_commit();
    saddr lane = Window::at(0, ln.y_row, ln.y_second),
          lane_a = Window::at(0, ln.x_row, ln.x_second);
    saddr t_lane = (ln.y_second * 16 + ln.y_row) * 16,
          t_lane_a = (ln.x_second * 16 + ln.x_row) * 16;
#pragma unroll
    for (int sweep = 0; sweep < 2; sweep++) {
      if (sweep == 1) {  // D_i of the row: lanes, then warps
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
      for (int u = 0; u < steps; u++) {
        int s = sweep * steps + u, key = key_of(s);
        saddr cs = win + (s & 1) * 2 * kWindow, cg = cs + kWindow;
        if (s + 1 < 2 * steps) {
          saddr nx = win + ((s + 1) & 1) * 2 * kWindow;
          int nk = key_of(s + 1);
          load_window(nx, sl, xs.pitch, nk, ln);
          load_window(nx + kWindow, gl, xg.pitch, nk, ln);
        }
        copy_commit();
        copy_wait<1>();
        sync_warp();
        bool full = key >= lo && key + kStep - 1 <= i;
#pragma unroll
        for (int c = 0; c < 8; c += 2) {
          uint32_t a[4], f[4];
          float w[2][4], dw[2][4];
          ldsm4t(a, cs + Window::along(lane, c));
          mix(w, a, pre);
          ldsm4t(f, cg + Window::along(lane, c));
          mix(dw, f, post_t);
          int j = key + c * 8 + ln.g;
#pragma unroll
          for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
              w[n][e] = exp2_fast(w[n][e] * kLog2e - lse2[n * 2 + e % 2]);
              int jj = j + 8 * (e / 2);
              if (!full && (jj < lo || jj > i)) w[n][e] = 0.f;
            }
          if (sweep == 0) {
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
              for (int e = 0; e < 4; e++) delta[n * 2 + e % 2] += w[n][e] * dw[n][e];
            continue;
          }
          uint32_t ga[4], sb[4], ta[4], tb[4];
          ldsm4(ga, cg + Window::along(lane_a, c));  // A: heads x keys of dw'
          ldsm4(sb, cs + Window::along(lane, c));    // B: keys x heads of s
          as_fragment(a, w);
          stsm4t(temp + t_lane, a);
          float y[2][4];
          mix(y, a, post);
          as_bf16(a, y, 1.f);
#pragma unroll
          for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) dw[n][e] = w[n][e] * (dw[n][e] - delta[n * 2 + e % 2]);
          as_fragment(f, dw);
          stsm4t(temp + 512 + t_lane, f);
          mix(y, f, pre_t);
          sync_warp();
          stsm4t(cg + Window::along(lane, c), a);
          as_bf16(a, y, ds_factor);
          stsm4t(cs + Window::along(lane, c), a);
          ldsm4(tb, temp + t_lane);          // B: keys x heads of w
          ldsm4(ta, temp + 512 + t_lane_a);  // A: heads x keys of dl
#pragma unroll
          for (int n = 0; n < 2; n++) {
            mma_f16(d_post[n], ga, tb[2 * n], tb[2 * n + 1]);
            mma_f16(d_pre[n], ta, sb[2 * n], sb[2 * n + 1]);
          }
          sync_warp();
        }
        if (sweep == 1) {
          sync_warp();
          store_window(cs, sl, xs.pitch, key, ln);
          store_window(cg, gl, xg.pitch, key, ln);
        }
        sync_warp();
      }
    }
    sync_block();  // the row's sums are read before the next row writes its own
  }
#pragma unroll
  for (int n = 0; n < 2; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) {  // row g + 8(e/2): out head; column 8n + 2t + e%2: in head
      int at = (ln.g + 8 * (e / 2)) * kHeads + n * 8 + ln.t * 2 + e % 2;
      add_shared(base + at * 4, d_pre[n][e]);
      add_shared(base + 1024 + at * 4, d_post[n][e]);
    }
  sync_block();
  float unscale = exp2_fast(-p.exponent[b * kHeads * 2]);
  for (int e = tid(); e < 512; e += kMixBackwardWarps * 32)
    add1(e < 256 ? p.d_pre + e : p.d_post + e - 256, bits_float(lds32(base + e * 4)) * unscale);
}
constexpr int mix_backward_smem() { return 2048 + 512 + kMixBackwardWarps * (4 * kWindow + 1024); }

// 64 rows x 64 keys of a slab into a Tile<64>.
DEV void load_slab_tile(saddr d, const Slab& x, int b, int h, int row, int key) {
  for (int e = tid(); e < kStep * 8; e += 128) {
    int r = e / 8, c = e % 8;
    copy16(Tile<kStep>::at(d, r, c), x.line(b, row + r, h) + key + c * 8, true);
  }
}
constexpr int kProductStages = 3;
// out rows = X V. grid (B * 16, row tiles of the slab)
// rows [own0, own1) of the sequence are written.
template <int D>
KERNEL(128, 3)
row_product_kernel(Slab x, Operand v, uint16_t* out, Strides so, int own0, int own1, const int* doc,
                   int T) {
  constexpr int XT = kStep * Tile<kStep>::pitch, STAGE = XT + kStep * Tile<D>::pitch;
  int h = block_x() % kHeads, b = block_x() / kHeads, rt = grid_y() - 1 - block_y(),
      row = x.row0 + rt * kStep;
  if (row >= own1 || row + kStep <= own0) return;
  saddr sm = smem_base();
  Lane ln;
  const uint16_t* src = v.p + b * v.s.b + h / v.rep * v.s.h;
  int s0 = tile_first_step(doc, b, row / kStep, T), s1 = row / kStep + 1;
  float acc[D / 8][4];
#pragma unroll
  for (int c = 0; c < D / 8; c++)
#pragma unroll
    for (int e = 0; e < 4; e++) acc[c][e] = 0.f;
  auto load = [&](int s) {
    saddr at = sm + (s - s0) % kProductStages * STAGE;
    if (s < s1) {
      load_slab_tile(at, x, b, h, rt * kStep, s * kStep);
      load_tile<D, kStep, 128>(at + XT, src, v.s.t, s * kStep, T);
    }
    copy_commit();
  };
  for (int s = s0; s < s0 + kProductStages - 1; s++) load(s);
  for (int s = s0; s < s1; s++) {
    saddr cur = sm + (s - s0) % kProductStages * STAGE;
    copy_wait<kProductStages - 2>();
    sync_block();
    load(s + kProductStages - 1);
    saddr a_lane = Tile<kStep>::at(cur, ln.w * 16 + ln.x_row, ln.x_second),
          v_lane = Tile<D>::at(cur + XT, ln.x_row, ln.x_second);
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
      uint32_t a[4], bf[4];
      ldsm4(a, Tile<kStep>::along(a_lane, 2 * kk));
#pragma unroll
      for (int c = 0; c < D / 8; c += 2) {
        ldsm4t(bf, Tile<D>::along(v_lane, c) + kk * 16 * Tile<D>::pitch);
        mma_bf16(acc[c], a, bf[0], bf[1]);
        mma_bf16(acc[c + 1], a, bf[2], bf[3]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int i = row + ln.w * 16 + ln.g + 8 * r;
    if (i < own0 || i >= own1) continue;
    uint16_t* d = out + b * so.b + h * so.h + i * so.t + ln.t * 2;
#pragma unroll
    for (int c = 0; c < D / 8; c++)
      *reinterpret_cast<uint32_t*>(d + c * 8) = pack_bf16(acc[c][2 * r], acc[c][2 * r + 1]);
  }
}
// acc keys += X^T Y over the rows [own0, own1) of the sequence that the slab holds, float32
// [B][Hkv][T][D]. One block sums all query heads of a key/value head, so the order of the additions
// is fixed. grid (B * 16 / rep, key tiles of 64)
template <int D>
KERNEL(128, 3)
key_product_kernel(Slab x, Operand y, float* out, int rep, int own0, int own1, const int* doc,
                   int T) {
  constexpr int XT = kStep * Tile<kStep>::pitch, STAGE = XT + kStep * Tile<D>::pitch;
  int kv_heads = kHeads / rep, hk = block_x() % kv_heads, b = block_x() / kv_heads, kt = block_y();
  saddr sm = smem_base();
  Lane ln;
  int first = own0 / kStep, end = (own1 + kStep - 1) / kStep;  // row tiles of the sequence
  if (first < kt) first = kt;
  while (end > first && tile_first_step(doc, b, end - 1, T) > kt) end--;
  if (first >= end) return;
  float acc[D / 8][4];
#pragma unroll
  for (int c = 0; c < D / 8; c++)
#pragma unroll
    for (int e = 0; e < 4; e++) acc[c][e] = 0.f;
  int each = end - first, steps = each * rep;
  auto load = [&](int u) {
    saddr at = sm + u % kProductStages * STAGE;
    if (u < steps) {
      int h = hk * rep + u / each, rt = first + u % each;
      load_slab_tile(at, x, b, h, rt * kStep - x.row0, kt * kStep);
      load_tile<D, kStep, 128>(at + XT, y.p + b * y.s.b + h / y.rep * y.s.h, y.s.t, rt * kStep, T);
    }
    copy_commit();
  };
  for (int u = 0; u < kProductStages - 1; u++) load(u);
  for (int u = 0; u < steps; u++) {
    saddr cur = sm + u % kProductStages * STAGE;
    int rt = first + u % each;
    copy_wait<kProductStages - 2>();
    sync_block();
    load(u + kProductStages - 1);
    saddr a_lane = Tile<kStep>::at(cur, ln.y_row, 2 * ln.w + ln.y_second),
          b_lane = Tile<D>::at(cur + XT, ln.x_row, ln.x_second);
    int live0 = own0 - rt * kStep,
        live1 = own1 - rt * kStep;  // other rows: stale slab contents, or another slab's
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
      uint32_t a[4], bf[4];
      ldsm4t(a, a_lane + kk * 16 * Tile<kStep>::pitch);
      if (live0 > 0 ||
          live1 < kStep) {  // A fragment: columns (rows of the slab) 2t, 2t+1 | 8+2t, 9+2t
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
#pragma unroll
      for (int c = 0; c < D / 8; c += 2) {
        ldsm4t(bf, Tile<D>::along(b_lane, c) + kk * 16 * Tile<D>::pitch);
        mma_bf16(acc[c], a, bf[0], bf[1]);
        mma_bf16(acc[c + 1], a, bf[2], bf[3]);
      }
    }
  }
  float* dst = out + ((int64_t)b * kv_heads + hk) * T * D;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int j = kt * kStep + ln.w * 16 + ln.g + 8 * r;
    if (j >= T) continue;
    float* d = dst + (int64_t)j * D + ln.t * 2;
#pragma unroll
    for (int c = 0; c < D / 8; c++) add2(d + c * 8, acc[c][2 * r], acc[c][2 * r + 1]);
  }
}
template <int D>
constexpr int product_smem() {
  return kProductStages * kStep * (Tile<kStep>::pitch + Tile<D>::pitch);
}

// Power of two for the backward scores: one for all 16 heads of a batch element, since heads mix.
// One warp per batch element.
KERNEL(32, 1) mix_exponent_kernel(const float* norms, float* exponent) {
  int b = block_x(), l = tid();
  float x = l < kHeads ? norms[(b * kHeads + l) * 2] : 0.f,
        y = l < kHeads ? norms[(b * kHeads + l) * 2 + 1] : 0.f;
  float z =
      x * 1e20f > 0.f ? 0.5f * (log2_fast(fmaxf(x, 1e-30f)) + log2_fast(fmaxf(y, 1e-30f))) : -100.f;
  for (int m = 16; m; m >>= 1) z = fmaxf(z, shfl_xor(z, m));
  if (l < kHeads) exponent[(b * kHeads + l) * 2] = floorf(11.f - z);
}
