// Key-query convolutions without head mixes, backward, first kernel: the gradients of values and of
// the kernel after the softmax, and
//   delta_i = sum_j w dw - d_lse_i,  dw = the convolution after, turned round, of dw' = dout v^T
//
// A block owns query rows and walks the keys; dv is a sum of float32 in device memory. Frames of
// rows begin at i0: scores at i0 - 5, weights, dw' and dw at i0, weights after the convolution at
// i0 + 5. Each convolution reads rows r .. r + 5. A block owns R - 10 rows of the last (from
// i0 + 5), and of delta (from i0). The first block begins at i0 = -5.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/mixing/convolution_tiles.cuh"

namespace fovea::kernels::cuda::mixing {

// grid (heads of the batch, row blocks)
template <int D, int NW, int KB, bool DOC, int BLOCKS>
FOVEA_KERNEL(NW * 32, BLOCKS)
convolution_values_kernel(Problem p) {
  using M = BackwardTiles<D, NW, KB>;
  using S = typename M::S;
  constexpr int R = M::R, OWN = R - 2 * kHalo, NO = M::NO, THREADS = NW * 32, WR = M::WR;
  uint32_t q_tile = shared_base(), do_tile = q_tile + M::row_tile, k_tile = do_tile + M::row_tile,
           v_tile = k_tile + M::key_tile, w_tile = v_tile + M::key_tile,
           before_at = w_tile + M::w_tile, after_at = before_at + kBandBytes,
           after_turned_at = after_at + kBandBytes;
  S g{after_turned_at + kBandBytes}, w{g.p + S::bytes};
  typename M::H s{w.p + S::bytes};
  Lane ln;
  int h = block_x() % p.heads, b = block_x() / p.heads, hk = key_head(p, h), T = p.length;
  int base = (grid_y() - 1 - block_y()) * OWN - kHalo;
  const int32_t* doc = DOC ? documents(p, b) : nullptr;
  const uint16_t *k = head_rows(p.k, b, hk), *v = head_rows(p.v, b, hk);
  float* dv = p.dv + (int64_t)(b * p.kv_heads + hk) * T * D;
  int t0 = first_step(doc, base - kHalo, T, KB), end = base + R < T ? base + R : T,
      t1 = (end + 16 + KB - 1) / KB;
  load_tile<D, R, THREADS>(q_tile, head_rows(p.q, b, h), p.q.row, base - kHalo, T);
  load_tile<D, R + 8, THREADS>(do_tile, head_rows(p.d_o, b, h), p.d_o.row, base, T);
  load_tile<D, KB, THREADS>(k_tile, k, p.k.row, t0 * KB, T);
  load_tile<D, KB, THREADS>(v_tile, v, p.v.row, t0 * KB, T);
  copy_commit();
  zero_shared<THREADS>(g.p, 2 * S::bytes + M::H::bytes);
  if (ln.w == 0) write_band(before_at, p.before, h, false, ln);
  if (ln.w == 1) write_band(after_at, p.after, h, false, ln);
  if (ln.w == 2) write_band(after_turned_at, p.after, h, true, ln);
  SeenRows<DOC> rs, rw, rg, ro;  // scores; weights; dw' and dw (the whole frame); weights after
  rs.init(ln, base - kHalo, T, R, doc, true);
  rw.init(ln, base, T, R - kHalo, doc, true);
  rg.init(ln, base, T, R, doc, false);
  ro.init(ln, base + kHalo, T, OWN, doc, true);
  bool border;
  uint32_t keep = correlate_keep<DOC>(ln, base + kHalo, T, doc, border);
  float g_scale = exp2_fast(gradient_exponent(p.norms + block_x() * kNorms));
  float lse2[2], delta[2] = {0.f, 0.f}, taps[9][4];
  load_lse2(lse2, p.lse + (int64_t)block_x() * T, rw);
  clear(taps);
  uint32_t q_lane = Tile<D>::at(q_tile, ln.w * 16 + ln.x_row, ln.x_second),
           do_lane = Tile<D>::at(do_tile, ln.w * 16 + ln.x_row, ln.x_second),
           k_lane = Tile<D>::at(k_tile, ln.y_row, ln.y_second),
           v_lane = Tile<D>::at(v_tile, ln.y_row, ln.y_second);
  copy_wait<0>();
  sync_block();
  Carry s_carry, g_carry, w_carry;
  for (int t = t0; t < t1; t++) {
    float acc[NO][4];
    int key = t * KB;
    put_scores_and_gradients<D, NO>(s, g, t, q_lane, k_lane, do_lane, v_lane, p.scale, g_scale, rs,
                                    rg, ln);
    sync_block();
    if (t + 1 < t1) {
      load_tile<D, KB, THREADS>(k_tile, k, p.k.row, key + KB, T);
      load_tile<D, KB, THREADS>(v_tile, v, p.v.row, key + KB, T);
    }
    copy_commit();
    {
      Band band(before_at, ln);
      convolve<DOC>(acc, s_carry, s, ln.w * 16, t * NO - 1, band, rw.keep, rw.border, ln);
    }
    weights_of(acc, lse2, rw, key - 8, ln);
    put_step(w, t * NO - 1, acc, ln);
    {
      float dw[NO][4];
      Band band(after_turned_at, ln);
      convolve<DOC>(dw, g_carry, g, ln.w * 16, t * NO - 1, band, rg.keep, rg.border, ln);
#pragma unroll
      for (int n = 0; n < NO; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) delta[e / 2] += acc[n][e] * dw[n][e];
    }
    copy_wait<0>();
    sync_block();
    {
      Band band(after_at, ln);
      convolve<DOC>(acc, w_carry, w, ln.w * 16, t * NO - 2, band, ro.keep, ro.border, ln);
    }
    keep_seen(acc, 1.f, ro, key - 16, ln);
    uint32_t packed[NO][2];
    put_tile<NO, WR>(w_tile, packed, acc, ln);
    if (p.d_after != nullptr)
      correlate<DOC, NO>(taps, w, ln.w * 16, g, ln.w * 16 + kHalo, t * NO - 2, OWN - ln.w * 16,
                         keep, border, ln);
    sync_block();
    key_row_product<D, NW, NO, WR>(dv, w_tile, do_tile, kHalo, key - 16, end, ln);
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float x = delta[r];
    x += shuffle_xor(x, 1);
    x += shuffle_xor(x, 2);
    int row = ln.w * 16 + ln.g + 8 * r, i = base + row;
    if (ln.t != 0 || row >= OWN || i < 0 || i >= T) continue;
    int64_t at = (int64_t)block_x() * T + i;
    p.delta[at] = p.d_lse != nullptr ? x - p.d_lse[at] * g_scale : x;
  }
  if (p.d_after != nullptr)
    add_kernel_gradient(p.d_after + (int64_t)block_x() * p.after.queries * p.after.keys, taps,
                        p.after, 1.f / g_scale, before_at, ln, THREADS);
}

}  // namespace fovea::kernels::cuda::mixing
