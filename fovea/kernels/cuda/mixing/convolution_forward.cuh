// Key-query convolutions without head mixes, forward, in two kernels of linear memory:
//   convolution_lse_kernel   s0 -> s1 -> lse over the seen keys
//   convolution_out_kernel   the same logits -> weights -> convolution after -> out
//
// A block owns neighbouring query rows and walks the keys. Chunks of scores live in rings, so that
// nothing is computed twice along keys: a convolution's output lags the newest keys by one chunk of
// 8, and its partial sums stay in registers. Along queries 5 rows per convolution are computed
// again by the next block.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/mixing/convolve.cuh"

namespace fovea::kernels::cuda::mixing {

// Running maxima and sums of a thread's two rows, over its own columns.
struct RunningSoftmax {
  float top[2] = {-1e30f, -1e30f}, sum[2] = {0.f, 0.f};

  template <bool DOC, int NO>
  FOVEA_DEVICE void add(float (&acc)[NO][4], const SeenRows<DOC>& rows, int key, const Lane& ln) {
    const bool full = rows.full(key, NO * 8);
    float m[2] = {top[0], top[1]};
#pragma unroll
    for (int n = 0; n < NO; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        acc[n][e] *= kLog2e;
        if (!full && !rows.allowed(e / 2, key + n * 8 + ln.t * 2 + e % 2)) acc[n][e] = -1e30f;
        m[e / 2] = max_of(m[e / 2], acc[n][e]);
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
  // Of all columns, in nats.
  FOVEA_DEVICE float lse(int r) const {
    float m = top[r];
    m = max_of(m, shuffle_xor(m, 1));
    m = max_of(m, shuffle_xor(m, 2));
    float x = sum[r] * exp2_fast(top[r] - m);
    x += shuffle_xor(x, 1);
    x += shuffle_xor(x, 2);
    return (m + log2_fast(x)) / kLog2e;
  }
};

// grid (heads of the batch, row blocks); long rows come first
template <int D, int NW, int KB, bool DOC, int BLOCKS>
FOVEA_KERNEL(NW * 32, BLOCKS)
convolution_lse_kernel(Problem p) {
  constexpr int R = NW * 16, OUT = R - kHalo, NO = KB / 8, THREADS = NW * 32;
  using S = Ring<NO, R + 8>;
  uint32_t k_tile = shared_base(), band_at = k_tile + KB * Tile<D>::pitch;
  S s{band_at + kBandBytes};
  Lane ln;
  int h = block_x() % p.heads, b = block_x() / p.heads, T = p.length;
  int base = (grid_y() - 1 - block_y()) * OUT;  // of the outputs; scores begin kHalo rows above
  const int32_t* doc = DOC ? documents(p, b) : nullptr;
  const uint16_t* k = head_rows(p.k, b, key_head(p, h));
  int t0 = first_step(doc, base - kHalo, T, KB), end = base + OUT < T ? base + OUT : T,
      t1 = (end + 8 + KB - 1) / KB;
  load_tile<D, KB, THREADS>(k_tile, k, p.k.row, t0 * KB, T);
  copy_commit();
  zero_shared<THREADS>(s.p, S::bytes);
  if (ln.w == 0) write_band(band_at, p.before, h, false, ln);
  uint32_t q[D / 16][4];
  load_rows<D>(q, head_rows(p.q, b, h), p.q.row, base - kHalo + ln.w * 16, T, ln);
  SeenRows<DOC> rs, rl;
  rs.init(ln, base - kHalo, T, R, doc, true);
  rl.init(ln, base, T, OUT, doc, true);
  copy_wait<0>();
  sync_block();
  Band band(band_at, ln);
  uint32_t b_lane = Tile<D>::at(k_tile, ln.y_row, ln.y_second);
  RunningSoftmax softmax;
  Carry carry;
  for (int t = t0; t < t1; t++) {
    float acc[NO][4];
    int key = t * KB;
    if (rs.none(key)) {
      put_zeros<NO>(s, t * NO, ln);
    } else {
      row_key_product<D, NO>(acc, q, b_lane);
      keep_seen(acc, p.scale, rs, key, ln);
      put_step(s, t * NO, acc, ln);
    }
    sync_block();
    if (t + 1 < t1) load_tile<D, KB, THREADS>(k_tile, k, p.k.row, (t + 1) * KB, T);
    copy_commit();
    if (!rl.none(key - 8)) {
      convolve<DOC>(acc, carry, s, ln.w * 16, t * NO - 1, band, rl.keep, rl.border, ln);
      softmax.add(acc, rl, key - 8, ln);
    }
    copy_wait<0>();
    sync_block();
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float lse = softmax.lse(r);
    int row = ln.w * 16 + ln.g + 8 * r, i = base + row;
    if (ln.t == 0 && row < OUT && i < T) p.lse[(int64_t)block_x() * T + i] = lse;
  }
}
template <int D, int NW, int KB>
constexpr int convolution_lse_shared() {
  return KB * Tile<D>::pitch + kBandBytes + Ring<KB / 8, NW * 16 + 8>::bytes;
}

// grid as before. Outputs from row base on, weights from base - 5, scores from base - 10.
template <int D, int NW, int KB, bool DOC, int BLOCKS>
FOVEA_KERNEL(NW * 32, BLOCKS)
convolution_out_kernel(Problem p) {
  constexpr int R = NW * 16, OUT = R - 2 * kHalo, NO = KB / 8, THREADS = NW * 32,
                TILE = KB * Tile<D>::pitch;
  using S = Ring<NO, R + 8>;
  uint32_t k_tile = shared_base(), v_tile = k_tile + TILE, before_at = v_tile + TILE,
           after_at = before_at + kBandBytes;
  S s{after_at + kBandBytes}, w{s.p + S::bytes};
  Lane ln;
  int h = block_x() % p.heads, b = block_x() / p.heads, T = p.length;
  int base = (grid_y() - 1 - block_y()) * OUT;
  const int32_t* doc = DOC ? documents(p, b) : nullptr;
  const uint16_t *k = head_rows(p.k, b, key_head(p, h)), *v = head_rows(p.v, b, key_head(p, h));
  int t0 = first_step(doc, base - 2 * kHalo, T, KB), end = base + OUT < T ? base + OUT : T,
      t1 = (end + 16 + KB - 1) / KB;
  load_tile<D, KB, THREADS>(k_tile, k, p.k.row, t0 * KB, T);
  copy_commit();
  zero_shared<THREADS>(s.p, 2 * S::bytes);
  if (ln.w == 0) write_band(before_at, p.before, h, false, ln);
  if (ln.w == 1) write_band(after_at, p.after, h, false, ln);
  uint32_t q[D / 16][4];
  load_rows<D>(q, head_rows(p.q, b, h), p.q.row, base - 2 * kHalo + ln.w * 16, T, ln);
  SeenRows<DOC> rs, rl, ro;
  rs.init(ln, base - 2 * kHalo, T, R, doc, true);
  rl.init(ln, base - kHalo, T, R, doc, true);
  ro.init(ln, base, T, R, doc, true);
  float lse2[2], o[D / 8][4];
  load_lse2(lse2, p.lse + (int64_t)block_x() * T, rl);
  clear(o);
  copy_wait<0>();
  sync_block();
  uint32_t b_lane = Tile<D>::at(k_tile, ln.y_row, ln.y_second),
           v_lane = Tile<D>::at(v_tile, ln.x_row, ln.x_second);
  Carry s_carry, w_carry;
  for (int t = t0; t < t1; t++) {
    float acc[NO][4];
    int key = t * KB;
    if (rs.none(key)) {
      put_zeros<NO>(s, t * NO, ln);
    } else {
      row_key_product<D, NO>(acc, q, b_lane);
      keep_seen(acc, p.scale, rs, key, ln);
      put_step(s, t * NO, acc, ln);
    }
    sync_block();
    if (t + 1 < t1) load_tile<D, KB, THREADS>(k_tile, k, p.k.row, (t + 1) * KB, T);
    load_tile<D, KB, THREADS>(v_tile, v, p.v.row, key - 16, T);
    copy_commit();
    if (rl.none(key - 8)) {
      put_zeros<NO>(w, t * NO - 1, ln);
    } else {
      Band band(before_at, ln);
      convolve<DOC>(acc, s_carry, s, ln.w * 16, t * NO - 1, band, rl.keep, rl.border, ln);
      weights_of(acc, lse2, rl, key - 8, ln);
      put_step(w, t * NO - 1, acc, ln);
    }
    copy_wait<0>();
    sync_block();
    if (!ro.none(key - 16)) {
      Band band(after_at, ln);
      convolve<DOC>(acc, w_carry, w, ln.w * 16, t * NO - 2, band, ro.keep, ro.border, ln);
      keep_seen(acc, 1.f, ro, key - 16, ln);
      uint32_t a[NO][2];
#pragma unroll
      for (int n = 0; n < NO; n++) {
        a[n][0] = pack(acc[n][0], acc[n][1]);
        a[n][1] = pack(acc[n][2], acc[n][3]);
      }
      weight_value_product<D, NO>(o, a, v_lane);
    }
  }
  write_rows<D>(p.o, b, h, o, base, OUT, T, ln);
}
template <int D, int NW, int KB>
constexpr int convolution_out_shared() {
  return 2 * KB * Tile<D>::pitch + 2 * kBandBytes + 2 * Ring<KB / 8, NW * 16 + 8>::bytes;
}

}  // namespace fovea::kernels::cuda::mixing
