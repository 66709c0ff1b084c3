// Multi-Token Attention, key-query convolution only, forward. Two kernels, O(T) memory:
//   conv_lse_kernel   s = scale q k^T (Mask0) -> conv pre -> lse[b,h,i] over allowed keys
//   conv_out_kernel   the same logits -> weights exp(l - lse) -> conv post (Mask0 before and after)
//   -> o = weights' v
// A block owns consecutive query rows and walks the keys; score chunks live in rings, so nothing is
// recomputed along keys: convolution outputs lag the newest keys by one chunk (8) per convolution
// (their partial sums stay in registers). Along queries 5 rows per convolution are recomputed.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "tile.cuh"

struct ConvForward {
  const uint16_t *q, *k, *v;  // bf16 [b][h][t][D]
  uint16_t* o;
  float* lse;  // [B][H][T], natural logarithm
  Strides sq, sk, sv, so;
  Taps pre, post;
  const int* doc;  // [B][T] first key of the query's document, or null
  int H, Hkv, T;
  float scale;
};

template <int D, int NW, int KB, bool DOC, int BLOCKS>
KERNEL(NW * 32, BLOCKS)
conv_lse_kernel(ConvForward p) {
  constexpr int R = NW * 16, OUT = R - kHalo, NO = KB / 8, THREADS = NW * 32;
  using S = Ring<NO, R + 8>;
  saddr sm = smem_base(), k_tile = sm, band_pre = k_tile + KB * Tile<D>::pitch;
  S s{band_pre + kBandBytes};
  Lane ln;
  int h = block_x() % p.H, b = block_x() / p.H, hk = h / (p.H / p.Hkv);
  int base = (grid_y() - 1 - block_y()) *
             OUT;  // first row of the outputs; the score frame begins kHalo rows above
  const int* doc = DOC ? p.doc + (int64_t)b * p.T : nullptr;
  const uint16_t* k = p.k + b * p.sk.b + hk * p.sk.h;
  int t0 = first_step(doc, base - kHalo, p.T, KB);
  int end = base + OUT < p.T ? base + OUT : p.T;
  int t1 = (end + 8 + KB - 1) / KB;
  load_tile<D, KB, THREADS>(k_tile, k, p.sk.t, t0 * KB, p.T);
  copy_commit();
  zero_shared<THREADS>(s.p, S::bytes);
  if (ln.w == 0) write_band(band_pre, p.pre, h, false, ln);
  uint32_t q[D / 16][4];
  load_rows<D>(q, p.q + b * p.sq.b + h * p.sq.h, p.sq.t, base - kHalo + ln.w * 16, p.T, ln);
  Rows<DOC> rs, rl;
  rs.init(ln, base - kHalo, p.T, R, doc, true);
  rl.init(ln, base, p.T, OUT, doc, true);
  copy_wait_all();
  sync_block();
  Band band(band_pre, ln);
  saddr b_lane = Tile<D>::at(k_tile, ln.y_row, ln.y_second);
  float top[2] = {-1e30f, -1e30f}, sum[2] = {0.f, 0.f};
  Carry s_carry;
  for (int t = t0; t < t1; t++) {
    float acc[NO][4];
    int key = t * KB;
    if (rs.none(key)) {
#pragma unroll
      for (int n = 0; n < NO; n++) s.put(t * NO + n, ln.w * 16, ln, 0, 0, 0, 0);
    } else {
      row_key_product<D, NO>(acc, q, b_lane);
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
    }
    sync_block();
    if (t + 1 < t1) load_tile<D, KB, THREADS>(k_tile, k, p.sk.t, (t + 1) * KB, p.T);
    copy_commit();
    key -= 8;
    if (!rl.none(key)) {
      convolve<DOC>(acc, s_carry, s, ln.w * 16, t * NO - 1, band, rl.keep, rl.border, ln);
      bool full = rl.full(key, KB);
      float m[2] = {top[0], top[1]};
#pragma unroll
      for (int n = 0; n < NO; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          acc[n][e] *= kLog2e;
          if (!full && !rl.allowed(e / 2, key + n * 8 + ln.t * 2 + e % 2)) acc[n][e] = -1e30f;
          m[e / 2] = fmaxf(m[e / 2], acc[n][e]);
        }
#pragma unroll
      for (int r = 0; r < 2; r++) {
        sum[r] *= exp2_fast(top[r] - m[r]);
        top[r] = m[r];
      }
#pragma unroll
      for (int n = 0; n < NO; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          sum[e / 2] += exp2_fast(acc[n][e] - (m[e / 2] > -1e29f ? m[e / 2] : 0.f));
    }
    copy_wait_all();
    sync_block();
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float m = top[r];
    m = fmaxf(m, shfl_xor(m, 1));
    m = fmaxf(m, shfl_xor(m, 2));
    float x = sum[r] * exp2_fast(top[r] - m);
    x += shfl_xor(x, 1);
    x += shfl_xor(x, 2);
    int row = ln.w * 16 + ln.g + 8 * r, i = base + row;
    if (ln.t == 0 && row < OUT && i < p.T)
      p.lse[(int64_t)block_x() * p.T + i] = (m + log2_fast(x)) / kLog2e;
  }
}
template <int D, int NW, int KB>
constexpr int conv_lse_smem() {
  return KB * Tile<D>::pitch + kBandBytes + Ring<KB / 8, NW * 16 + 8>::bytes;
}

template <int D, int NW, int KB, bool DOC, int BLOCKS>
KERNEL(NW * 32, BLOCKS)
conv_out_kernel(ConvForward p) {
  constexpr int R = NW * 16, OUT = R - 2 * kHalo, NO = KB / 8, THREADS = NW * 32,
                TILE = KB * Tile<D>::pitch;
  using S = Ring<NO, R + 8>;
  saddr sm = smem_base(), k_tile = sm, v_tile = k_tile + TILE, band_pre = v_tile + TILE,
        band_post = band_pre + kBandBytes;
  S s{band_post + kBandBytes}, w{s.p + S::bytes};
  Lane ln;
  int h = block_x() % p.H, b = block_x() / p.H, hk = h / (p.H / p.Hkv);
  int base = (grid_y() - 1 - block_y()) *
             OUT;  // rows: outputs from base, weights from base-5, scores from base-10
  const int* doc = DOC ? p.doc + (int64_t)b * p.T : nullptr;
  const uint16_t* k = p.k + b * p.sk.b + hk * p.sk.h;
  const uint16_t* v = p.v + b * p.sv.b + hk * p.sv.h;
  int t0 = first_step(doc, base - 2 * kHalo, p.T, KB);
  int end = base + OUT < p.T ? base + OUT : p.T;
  int t1 = (end + 16 + KB - 1) / KB;
  load_tile<D, KB, THREADS>(k_tile, k, p.sk.t, t0 * KB, p.T);
  copy_commit();
  zero_shared<THREADS>(s.p, 2 * S::bytes);
  if (ln.w == 0) write_band(band_pre, p.pre, h, false, ln);
  if (ln.w == 1) write_band(band_post, p.post, h, false, ln);
  uint32_t q[D / 16][4];
  load_rows<D>(q, p.q + b * p.sq.b + h * p.sq.h, p.sq.t, base - 2 * kHalo + ln.w * 16, p.T, ln);
  Rows<DOC> rs, rl, ro;
  rs.init(ln, base - 2 * kHalo, p.T, R, doc, true);
  rl.init(ln, base - kHalo, p.T, R, doc, true);
  ro.init(ln, base, p.T, R, doc, true);
  float lse2[2];
#pragma unroll
  for (int r = 0; r < 2; r++)
    lse2[r] = rl.hi[r] < 0 ? 0.f : p.lse[(int64_t)block_x() * p.T + rl.hi[r]] * kLog2e;
  float o[D / 8][4];
#pragma unroll
  for (int c = 0; c < D / 8; c++)
#pragma unroll
    for (int e = 0; e < 4; e++) o[c][e] = 0.f;
  copy_wait_all();
  sync_block();
  saddr b_lane = Tile<D>::at(k_tile, ln.y_row, ln.y_second),
        v_lane = Tile<D>::at(v_tile, ln.x_row, ln.x_second);
  Carry s_carry, w_carry;
  for (int t = t0; t < t1; t++) {
    float acc[NO][4];
    int key = t * KB;
    if (rs.none(key)) {
#pragma unroll
      for (int n = 0; n < NO; n++) s.put(t * NO + n, ln.w * 16, ln, 0, 0, 0, 0);
    } else {
      row_key_product<D, NO>(acc, q, b_lane);
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
    }
    sync_block();
    if (t + 1 < t1) load_tile<D, KB, THREADS>(k_tile, k, p.sk.t, (t + 1) * KB, p.T);
    load_tile<D, KB, THREADS>(v_tile, v, p.sv.t, key - 16, p.T);
    copy_commit();
    if (rl.none(key - 8)) {
#pragma unroll
      for (int n = 0; n < NO; n++) w.put(t * NO - 1 + n, ln.w * 16, ln, 0, 0, 0, 0);
    } else {
      Band band(band_pre, ln);
      convolve<DOC>(acc, s_carry, s, ln.w * 16, t * NO - 1, band, rl.keep, rl.border, ln);
      bool full = rl.full(key - 8, KB);
#pragma unroll
      for (int n = 0; n < NO; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          acc[n][e] = exp2_fast(acc[n][e] * kLog2e - lse2[e / 2]);
          if (!full && !rl.allowed(e / 2, key - 8 + n * 8 + ln.t * 2 + e % 2)) acc[n][e] = 0.f;
        }
        w.put(t * NO - 1 + n, ln.w * 16, ln, acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
      }
    }
    copy_wait_all();
    sync_block();
    if (!ro.none(key - 16)) {
      Band band(band_post, ln);
      convolve<DOC>(acc, w_carry, w, ln.w * 16, t * NO - 2, band, ro.keep, ro.border, ln);
      bool full = ro.full(key - 16, KB);
      uint32_t a[NO][2];
#pragma unroll
      for (int n = 0; n < NO; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
          if (!full && !ro.allowed(e / 2, key - 16 + n * 8 + ln.t * 2 + e % 2)) acc[n][e] = 0.f;
        a[n][0] = pack_bf16(acc[n][0], acc[n][1]);
        a[n][1] = pack_bf16(acc[n][2], acc[n][3]);
      }
      weight_value_product<D, NO>(o, a, v_lane);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int row = ln.w * 16 + ln.g + 8 * r, i = base + row;
    if (row >= OUT || i >= p.T) continue;
    uint16_t* out = p.o + b * p.so.b + h * p.so.h + i * p.so.t + ln.t * 2;
#pragma unroll
    for (int c = 0; c < D / 8; c++)
      *reinterpret_cast<uint32_t*>(out + c * 8) = pack_bf16(o[c][2 * r], o[c][2 * r + 1]);
  }
}
template <int D, int NW, int KB>
constexpr int conv_out_smem() {
  return 2 * KB * Tile<D>::pitch + 2 * kBandBytes + 2 * Ring<KB / 8, NW * 16 + 8>::bytes;
}
