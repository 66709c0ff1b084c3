// Multi-Token Attention, key-query convolution only, backward, O(T) memory:
//   row_norm_kernel    max |do_i|^2 and max |v_j|^2 per head: a power of two keeps score gradients
//   inside the range of fp16 conv_value_kernel  weights w, dw' = do v^T; dw = conv post^T(dw'); D_i
//   = sum_j w dw; dv += w'^T do; d(post kernel) += corr(dw', w) conv_score_kernel  dl = w (dw - D);
//   ds = conv pre^T(dl); dq = scale ds k; dk += scale ds^T q; d(pre kernel) += corr(dl, s)
// D_i is not do_i . o_i here: the post convolution couples rows.
// A block owns query rows and walks the keys; dk, dv are float32 sums in device memory
// (red.global.add.v2.f32).
//
// Frames (row 0 of each, block origin i0): s i0-5; w, dw', dw, dl, ds i0; w' i0+5. Every
// convolution reads rows r .. r+5. Rows owned by a block: R-10 of w' and dw' (from i0+5), of dl and
// ds (from i0). The first block begins at i0 = -5.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "tile.cuh"

struct ConvBackward {
  const uint16_t *q, *k, *v, *d_o;
  const float* lse;    // [B][H][T]
  float* delta;        // [B][H][T]: D_i times the gradient scale
  const float* norms;  // [B*H][2]
  uint16_t* dq;
  float *dk, *dv;         // [B][Hkv][T][D] float32, zero on entry
  float *d_pre, *d_post;  // [H][cq][ck] float32, zero on entry
  Strides sq, sk, sv, so, sdq;
  Taps pre, post;
  const int* doc;
  int H, Hkv, T;
  float scale;
};

// Power of two that brings |do||v| to at most 2^11.
DEV float gradient_exponent(const float* norms) {
  float a = norms[0] > 1e-30f ? norms[0] : 1e-30f, b = norms[1] > 1e-30f ? norms[1] : 1e-30f;
  return floorf(11.f - 0.5f * (log2_fast(a) + log2_fast(b)));
}

template <int D>
KERNEL(256, 1)
row_norm_kernel(ConvBackward p, float* norms) {
  int h = block_y() % p.H, b = block_y() / p.H, hk = h / (p.H / p.Hkv), lane = tid() & 31;
  float best[2] = {0.f, 0.f};
#pragma unroll
  for (int u = 0; u < 8; u++) {  // all loads in flight before the first sum
    int i = (block_x() * 8 + (tid() >> 5)) * 8 + u;
    const uint16_t* rows[2] = {p.d_o + b * p.so.b + h * p.so.h + i * p.so.t,
                               p.v + b * p.sv.b + hk * p.sv.h + i * p.sv.t};
#pragma unroll
    for (int s = 0; s < 2; s++) {
      float x = 0.f;
#pragma unroll
      for (int c = 0; c < D; c += 64) {
        uint32_t y = i < p.T && c + lane * 2 < D
                         ? *reinterpret_cast<const uint32_t*>(rows[s] + c + lane * 2)
                         : 0u;
        float lo = bits_float(y << 16), hi = bits_float(y & 0xffff0000u);
        x += lo * lo + hi * hi;
      }
#pragma unroll
      for (int m = 16; m; m >>= 1) x += shfl_xor(x, m);
      best[s] = fmaxf(best[s], x);
    }
  }
  if (lane == 0)
    for (int s = 0; s < 2; s++) max_nonnegative(norms + block_y() * 2 + s, best[s]);
}

// Kernel gradient: acc[pair][cc] (16 x 8) += X^T Y over the warp's 16 rows, X at offsets 2 pair, 2
// pair + 1 and chunk n-1+cc, Y chunk n. y_rows: rows of Y that count (even; 16 or more: all).
// Element (m, u): offset 2 pair + m/8, key distance 8cc + m%8 - u - 8.
template <bool DOC, int NO, int SX, int RX, int SY, int RY>
DEV void correlate(float (&acc)[9][4], Ring<SX, RX> x, int x_row, Ring<SY, RY> y, int y_row,
                   int first, int y_rows, uint32_t row_keep, bool border, const Lane& ln) {
  uint32_t b[NO][2];
#pragma unroll
  for (int n = 0; n < NO; n += 2) {
    uint32_t r[4];
    ldsm4t(r, y.at(first + n + ln.x_second) + (y_row + ln.x_row) * 16);
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
    saddr col = x.at(first + c) + lane_offset;
#pragma unroll
    for (int pr = 0; pr < 3; pr++) {
      uint32_t a[4];
      ldsm4t(a, col + pr * 32);
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
        if (n >= 0 && n < NO) mma_f16(acc[pr * 3 + cc], a, b[n][0], b[n][1]);
      }
    }
  }
}
// Bits for correlate: row i of Y (frame base, the warp's rows) may meet row i - 5 + e.
template <bool DOC>
DEV uint32_t correlate_keep(const Lane& ln, int base, int T, const int* doc, bool& border) {
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
    for (int m = 16; m; m >>= 1) cut |= shfl_xor(cut, m);
    border = cut != 0;
  }
  return keep;
}
// Sums the band of the accumulators into taps [cq][ck] of one head.
DEV void add_kernel_gradient(float* dst, const float (&acc)[9][4], Taps k, float factor,
                             saddr scratch, const Lane& ln, int threads) {
  for (int x = tid(); x < k.cq * k.ck; x += threads) sts32(scratch + x * 4, 0);
  sync_block();
  int older = (k.ck - 1) / 2;
#pragma unroll
  for (int i = 0; i < 9; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int a = (i / 3) * 2 + e / 2 - (kRowReach - k.cq),
          b = (i % 3) * 8 + ln.g - (ln.t * 2 + e % 2) - 8 + older;
      if (a >= 0 && b >= 0 && b < k.ck) add_shared(scratch + (a * k.ck + b) * 4, acc[i][e]);
    }
  sync_block();
  for (int x = tid(); x < k.cq * k.ck; x += threads)
    add1(dst + x, bits_float(lds32(scratch + x * 4)) * factor);
}

// dst[key, D] += W^T (keys x R rows, bf16, chunk-major [NO][W_ROWS]) x X (R rows from x_row of a
// row tile): each warp 16 keys and a part of D.
template <int D, int NW, int NO, int W_ROWS>
DEV void key_row_product(float* dst, saddr w_tile, saddr x_tile, int x_row, int key0, int T,
                         const Lane& ln) {
  constexpr int GROUPS = NO / 2, PARTS = NW / GROUPS, C = D / 8 / PARTS;  // chunks of D per warp
  static_assert(C % 2 == 0 && GROUPS * PARTS == NW);
  int kg = ln.w % GROUPS, part = ln.w / GROUPS;
  float acc[C][4];
#pragma unroll
  for (int c = 0; c < C; c++)
#pragma unroll
    for (int e = 0; e < 4; e++) acc[c][e] = 0.f;
  saddr a_lane = w_tile + ((2 * kg + ln.y_second) * W_ROWS + ln.y_row) * 16;
  saddr b_lane[C / 2];
#pragma unroll
  for (int c = 0; c < C; c += 2)
    b_lane[c / 2] = Tile<D>::at(x_tile, x_row + ln.x_row, part * C + c + ln.x_second);
#pragma unroll
  for (int kk = 0; kk < NW; kk++) {
    uint32_t a[4], b[4];
    ldsm4t(a, a_lane + kk * 256);
#pragma unroll
    for (int c = 0; c < C; c += 2) {
      ldsm4t(b, b_lane[c / 2] + kk * 16 * Tile<D>::pitch);
      mma_bf16(acc[c], a, b[0], b[1]);
      mma_bf16(acc[c + 1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int j = key0 + kg * 16 + ln.g + 8 * r;
    if (j < 0 || j >= T) continue;
    float* d = dst + (int64_t)j * D + part * C * 8 + ln.t * 2;
#pragma unroll
    for (int c = 0; c < C; c++) add2(d + c * 8, acc[c][2 * r], acc[c][2 * r + 1]);
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
  static constexpr int value_smem =
      2 * row_tile + 2 * key_tile + w_tile + 3 * kBandBytes + 2 * S::bytes + H::bytes;
  static constexpr int score_smem =
      2 * row_tile + 3 * key_tile + w_tile + 3 * kBandBytes + 2 * S::bytes + H::bytes;
};

template <int D, int NW, int KB, bool DOC, int BLOCKS>
KERNEL(NW * 32, BLOCKS)
conv_value_kernel(ConvBackward p) {
  using M = BackwardTiles<D, NW, KB>;
  using S = typename M::S;
  constexpr int R = M::R, OWN = R - 2 * kHalo, NO = M::NO, THREADS = NW * 32, WR = M::WR;
  saddr q_tile = smem_base(), do_tile = q_tile + M::row_tile, k_tile = do_tile + M::row_tile,
        v_tile = k_tile + M::key_tile, w_tile = v_tile + M::key_tile, band_pre = w_tile + M::w_tile,
        band_post = band_pre + kBandBytes, band_post_t = band_post + kBandBytes;
  S g{band_post_t + kBandBytes}, w{g.p + S::bytes};
  typename M::H s{w.p + S::bytes};
  Lane ln;
  int h = block_x() % p.H, b = block_x() / p.H, hk = h / (p.H / p.Hkv);
  int base = (grid_y() - 1 - block_y()) * OWN - kHalo;
  const int* doc = DOC ? p.doc + (int64_t)b * p.T : nullptr;
  const uint16_t *k = p.k + b * p.sk.b + hk * p.sk.h, *v = p.v + b * p.sv.b + hk * p.sv.h;
  float* dv = p.dv + (int64_t)(b * p.Hkv + hk) * p.T * D;
  int t0 = first_step(doc, base - kHalo, p.T, KB);
  int end = base + R < p.T ? base + R : p.T;
  int t1 = (end + 16 + KB - 1) / KB;
  load_tile<D, R, THREADS>(q_tile, p.q + b * p.sq.b + h * p.sq.h, p.sq.t, base - kHalo, p.T);
  load_tile<D, R + 8, THREADS>(do_tile, p.d_o + b * p.so.b + h * p.so.h, p.so.t, base, p.T);
  load_tile<D, KB, THREADS>(k_tile, k, p.sk.t, t0 * KB, p.T);
  load_tile<D, KB, THREADS>(v_tile, v, p.sv.t, t0 * KB, p.T);
  copy_commit();
  zero_shared<THREADS>(g.p, 2 * S::bytes + M::H::bytes);
  if (ln.w == 0) write_band(band_pre, p.pre, h, false, ln);
  if (ln.w == 1) write_band(band_post, p.post, h, false, ln);
  if (ln.w == 2) write_band(band_post_t, p.post, h, true, ln);
  Rows<DOC> rs, rw, rg, ro;  // s; weights; dw' and dw (all rows of the frame); w'
  rs.init(ln, base - kHalo, p.T, R, doc, true);
  rw.init(ln, base, p.T, R - kHalo, doc, true);
  rg.init(ln, base, p.T, R, doc, false);
  ro.init(ln, base + kHalo, p.T, OWN, doc, true);
  bool corr_border;
  uint32_t corr_keep = correlate_keep<DOC>(ln, base + kHalo, p.T, doc, corr_border);
  float g_scale = exp2_fast(gradient_exponent(p.norms + block_x() * 2));
  float lse2[2], delta[2] = {0.f, 0.f};
#pragma unroll
  for (int r = 0; r < 2; r++)
    lse2[r] = rw.hi[r] < 0 ? 0.f : p.lse[(int64_t)block_x() * p.T + rw.hi[r]] * kLog2e;
  float corr[9][4];
#pragma unroll
  for (int i = 0; i < 9; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) corr[i][e] = 0.f;
  saddr q_lane = Tile<D>::at(q_tile, ln.w * 16 + ln.x_row, ln.x_second),
        do_lane = Tile<D>::at(do_tile, ln.w * 16 + ln.x_row, ln.x_second);
  saddr k_lane = Tile<D>::at(k_tile, ln.y_row, ln.y_second),
        v_lane = Tile<D>::at(v_tile, ln.y_row, ln.y_second);
  copy_wait_all();
  sync_block();
  Carry s_carry, g_carry, w_carry;
  for (int t = t0; t < t1; t++) {
    float acc[NO][4];
    int key = t * KB;
    row_key_product<D, NO>(acc, q_lane, k_lane);
    bool full = rs.full(key, KB);
#pragma unroll
    for (int n = 0; n < NO; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        acc[n][e] *= p.scale;
        if (!full && !rs.allowed(e / 2, key + n * 8 + ln.t * 2 + e % 2)) acc[n][e] = 0.f;
      }
      s.put(t * NO + n, ln.w * 16, ln, acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
    }
    row_key_product<D, NO>(acc, do_lane, v_lane);
    full = rg.full(key, KB);
#pragma unroll
    for (int n = 0; n < NO; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        acc[n][e] *= g_scale;
        if (!full && !rg.allowed(e / 2, key + n * 8 + ln.t * 2 + e % 2)) acc[n][e] = 0.f;
      }
      g.put(t * NO + n, ln.w * 16, ln, acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
    }
    sync_block();
    if (t + 1 < t1) {
      load_tile<D, KB, THREADS>(k_tile, k, p.sk.t, key + KB, p.T);
      load_tile<D, KB, THREADS>(v_tile, v, p.sv.t, key + KB, p.T);
    }
    copy_commit();
    {
      Band band(band_pre, ln);
      convolve<DOC>(acc, s_carry, s, ln.w * 16, t * NO - 1, band, rw.keep, rw.border, ln);
    }
    full = rw.full(key - 8, KB);
#pragma unroll
    for (int n = 0; n < NO; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        acc[n][e] = exp2_fast(acc[n][e] * kLog2e - lse2[e / 2]);
        if (!full && !rw.allowed(e / 2, key - 8 + n * 8 + ln.t * 2 + e % 2)) acc[n][e] = 0.f;
      }
      w.put(t * NO - 1 + n, ln.w * 16, ln, acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
    }
    {
      float dw[NO][4];
      Band band(band_post_t, ln);
      convolve<DOC>(dw, g_carry, g, ln.w * 16, t * NO - 1, band, rg.keep, rg.border, ln);
#pragma unroll
      for (int n = 0; n < NO; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) delta[e / 2] += acc[n][e] * dw[n][e];
    }
    copy_wait_all();
    sync_block();
    {
      Band band(band_post, ln);
      convolve<DOC>(acc, w_carry, w, ln.w * 16, t * NO - 2, band, ro.keep, ro.border, ln);
    }
    full = ro.full(key - 16, KB);
#pragma unroll
    for (int n = 0; n < NO; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (!full && !ro.allowed(e / 2, key - 16 + n * 8 + ln.t * 2 + e % 2)) acc[n][e] = 0.f;
      saddr d = w_tile + (n * WR + ln.w * 16 + ln.g) * 16 + ln.t * 4;
      sts32(d, pack_bf16(acc[n][0], acc[n][1]));
      sts32(d + 128, pack_bf16(acc[n][2], acc[n][3]));
    }
    correlate<DOC, NO>(corr, w, ln.w * 16, g, ln.w * 16 + kHalo, t * NO - 2, OWN - ln.w * 16,
                       corr_keep, corr_border, ln);
    sync_block();
    key_row_product<D, NW, NO, WR>(dv, w_tile, do_tile, kHalo, key - 16, end, ln);
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float x = delta[r];
    x += shfl_xor(x, 1);
    x += shfl_xor(x, 2);
    int row = ln.w * 16 + ln.g + 8 * r, i = base + row;
    if (ln.t == 0 && row < OWN && i >= 0 && i < p.T) p.delta[(int64_t)block_x() * p.T + i] = x;
  }
  add_kernel_gradient(p.d_post + (int64_t)h * p.post.cq * p.post.ck, corr, p.post, 1.f / g_scale,
                      band_pre, ln, THREADS);
}

template <int D, int NW, int KB, bool DOC, int BLOCKS>
KERNEL(NW * 32, BLOCKS)
conv_score_kernel(ConvBackward p) {
  using M = BackwardTiles<D, NW, KB>;
  using S = typename M::S;
  constexpr int R = M::R, OWN = R - 2 * kHalo, NO = M::NO, THREADS = NW * 32, WR = M::WR;
  saddr q_tile = smem_base(), do_tile = q_tile + M::row_tile, k_tile = do_tile + M::row_tile,
        v_tile = k_tile + M::key_tile, late_tile = v_tile + M::key_tile,
        ds_tile = late_tile + M::key_tile, band_pre = ds_tile + M::w_tile,
        band_pre_t = band_pre + kBandBytes, band_post_t = band_pre_t + kBandBytes;
  S s{band_post_t + kBandBytes}, dl{s.p + S::bytes};
  typename M::H g{dl.p + S::bytes};
  Lane ln;
  int h = block_x() % p.H, b = block_x() / p.H, hk = h / (p.H / p.Hkv);
  int base = (grid_y() - 1 - block_y()) * OWN - kHalo;
  const int* doc = DOC ? p.doc + (int64_t)b * p.T : nullptr;
  const uint16_t *k = p.k + b * p.sk.b + hk * p.sk.h, *v = p.v + b * p.sv.b + hk * p.sv.h;
  float* dk = p.dk + (int64_t)(b * p.Hkv + hk) * p.T * D;
  int t0 = first_step(doc, base - kHalo, p.T, KB);
  int end = base + R < p.T ? base + R : p.T;
  int t1 = (end + 16 + KB - 1) / KB;
  load_tile<D, R + 8, THREADS>(q_tile, p.q + b * p.sq.b + h * p.sq.h, p.sq.t, base - kHalo, p.T);
  load_tile<D, R, THREADS>(do_tile, p.d_o + b * p.so.b + h * p.so.h, p.so.t, base, p.T);
  load_tile<D, KB, THREADS>(k_tile, k, p.sk.t, t0 * KB, p.T);
  load_tile<D, KB, THREADS>(v_tile, v, p.sv.t, t0 * KB, p.T);
  copy_commit();
  zero_shared<THREADS>(s.p, 2 * S::bytes + M::H::bytes);
  if (ln.w == 0) write_band(band_pre, p.pre, h, false, ln);
  if (ln.w == 1) write_band(band_pre_t, p.pre, h, true, ln);
  if (ln.w == 2) write_band(band_post_t, p.post, h, true, ln);
  Rows<DOC> rs, rw, rg, rd;  // s; weights and dl; dw' ; ds (owned rows)
  rs.init(ln, base - kHalo, p.T, R, doc, true);
  rw.init(ln, base, p.T, R - kHalo, doc, true);
  rg.init(ln, base, p.T, R, doc, false);
  rd.init(ln, base, p.T, OWN, doc, false);
  bool corr_border;
  uint32_t corr_keep = correlate_keep<DOC>(ln, base, p.T, doc, corr_border);
  float g_scale = exp2_fast(gradient_exponent(p.norms + block_x() * 2)),
        ds_scale = p.scale / g_scale;
  float lse2[2], delta[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    lse2[r] = rw.hi[r] < 0 ? 0.f : p.lse[(int64_t)block_x() * p.T + rw.hi[r]] * kLog2e;
    delta[r] = rw.hi[r] < 0 ? 0.f : p.delta[(int64_t)block_x() * p.T + rw.hi[r]];
  }
  float corr[9][4], dq[D / 8][4];
#pragma unroll
  for (int i = 0; i < 9; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) corr[i][e] = 0.f;
#pragma unroll
  for (int c = 0; c < D / 8; c++)
#pragma unroll
    for (int e = 0; e < 4; e++) dq[c][e] = 0.f;
  saddr q_lane = Tile<D>::at(q_tile, ln.w * 16 + ln.x_row, ln.x_second),
        do_lane = Tile<D>::at(do_tile, ln.w * 16 + ln.x_row, ln.x_second);
  saddr k_lane = Tile<D>::at(k_tile, ln.y_row, ln.y_second),
        v_lane = Tile<D>::at(v_tile, ln.y_row, ln.y_second);
  saddr late_lane = Tile<D>::at(late_tile, ln.x_row, ln.x_second);
  copy_wait_all();
  sync_block();
  Carry s_carry, g_carry, dl_carry;
  for (int t = t0; t < t1; t++) {
    float acc[NO][4];
    int key = t * KB;
    row_key_product<D, NO>(acc, q_lane, k_lane);
    bool full = rs.full(key, KB);
#pragma unroll
    for (int n = 0; n < NO; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        acc[n][e] *= p.scale;
        if (!full && !rs.allowed(e / 2, key + n * 8 + ln.t * 2 + e % 2)) acc[n][e] = 0.f;
      }
      s.put(t * NO + n, ln.w * 16, ln, acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
    }
    row_key_product<D, NO>(acc, do_lane, v_lane);
    full = rg.full(key, KB);
#pragma unroll
    for (int n = 0; n < NO; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        acc[n][e] *= g_scale;
        if (!full && !rg.allowed(e / 2, key + n * 8 + ln.t * 2 + e % 2)) acc[n][e] = 0.f;
      }
      g.put(t * NO + n, ln.w * 16, ln, acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
    }
    sync_block();
    if (t + 1 < t1) {
      load_tile<D, KB, THREADS>(k_tile, k, p.sk.t, key + KB, p.T);
      load_tile<D, KB, THREADS>(v_tile, v, p.sv.t, key + KB, p.T);
    }
    load_tile<D, KB, THREADS>(late_tile, k, p.sk.t, key - 16, p.T);
    copy_commit();
    {
      Band band(band_pre, ln);
      convolve<DOC>(acc, s_carry, s, ln.w * 16, t * NO - 1, band, rw.keep, rw.border, ln);
    }
    full = rw.full(key - 8, KB);
#pragma unroll
    for (int n = 0; n < NO; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        acc[n][e] = exp2_fast(acc[n][e] * kLog2e - lse2[e / 2]);
        if (!full && !rw.allowed(e / 2, key - 8 + n * 8 + ln.t * 2 + e % 2)) acc[n][e] = 0.f;
      }
    {
      float dw[NO][4];
      Band band(band_post_t, ln);
      convolve<DOC>(dw, g_carry, g, ln.w * 16, t * NO - 1, band, rg.keep, rg.border, ln);
#pragma unroll
      for (int n = 0; n < NO; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) acc[n][e] *= dw[n][e] - delta[e / 2];
        dl.put(t * NO - 1 + n, ln.w * 16, ln, acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
      }
    }
    copy_wait_all();
    sync_block();
    {
      Band band(band_pre_t, ln);
      convolve<DOC>(acc, dl_carry, dl, ln.w * 16, t * NO - 2, band, rd.keep, rd.border, ln);
    }
    full = rd.full(key - 16, KB);
    uint32_t a[NO][2];
#pragma unroll
    for (int n = 0; n < NO; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        acc[n][e] *= ds_scale;
        if (!full && !rd.allowed(e / 2, key - 16 + n * 8 + ln.t * 2 + e % 2)) acc[n][e] = 0.f;
      }
      saddr d = ds_tile + (n * WR + ln.w * 16 + ln.g) * 16 + ln.t * 4;
      a[n][0] = pack_bf16(acc[n][0], acc[n][1]);
      a[n][1] = pack_bf16(acc[n][2], acc[n][3]);
      sts32(d, a[n][0]);
      sts32(d + 128, a[n][1]);
    }
    weight_value_product<D, NO>(dq, a, late_lane);
    correlate<DOC, NO>(corr, s, ln.w * 16, dl, ln.w * 16, t * NO - 2, OWN - ln.w * 16, corr_keep,
                       corr_border, ln);
    sync_block();
    key_row_product<D, NW, NO, WR>(dk, ds_tile, q_tile, kHalo, key - 16, end, ln);
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int row = ln.w * 16 + ln.g + 8 * r, i = base + row;
    if (row >= OWN || i < 0 || i >= p.T) continue;
    uint16_t* out = p.dq + b * p.sdq.b + h * p.sdq.h + i * p.sdq.t + ln.t * 2;
#pragma unroll
    for (int c = 0; c < D / 8; c++)
      *reinterpret_cast<uint32_t*>(out + c * 8) = pack_bf16(dq[c][2 * r], dq[c][2 * r + 1]);
  }
  add_kernel_gradient(p.d_pre + (int64_t)h * p.pre.cq * p.pre.ck, corr, p.pre, 1.f / g_scale,
                      band_pre, ln, THREADS);
}
