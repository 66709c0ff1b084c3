// Key-query convolutions without head mixes, backward, second kernel: the gradients of queries,
// keys and the kernel before the softmax.
//   dl = w (dw - delta);  ds = the convolution before, turned round, of dl;  dq = scale ds k
//
// Frames as in convolution_values.cuh, with dl and ds at i0. A block owns R - 10 rows of both.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/mixing/convolution_tiles.cuh"

namespace fovea::kernels::cuda::mixing {

// grid (heads of the batch, row blocks)
template <int D, int NW, int KB, bool DOC, int BLOCKS>
FOVEA_KERNEL(NW * 32, BLOCKS)
convolution_scores_kernel(Problem p) {
  using M = BackwardTiles<D, NW, KB>;
  using S = typename M::S;
  constexpr int R = M::R, OWN = R - 2 * kHalo, NO = M::NO, THREADS = NW * 32, WR = M::WR;
  uint32_t q_tile = shared_base(), do_tile = q_tile + M::row_tile, k_tile = do_tile + M::row_tile,
           v_tile = k_tile + M::key_tile, late_tile = v_tile + M::key_tile,
           ds_tile = late_tile + M::key_tile, before_at = ds_tile + M::w_tile,
           before_turned_at = before_at + kBandBytes,
           after_turned_at = before_turned_at + kBandBytes;
  S s{after_turned_at + kBandBytes}, dl{s.p + S::bytes};
  typename M::H g{dl.p + S::bytes};
  Lane ln;
  int h = block_x() % p.heads, b = block_x() / p.heads, hk = key_head(p, h), T = p.length;
  int base = (grid_y() - 1 - block_y()) * OWN - kHalo;
  const int32_t* doc = DOC ? documents(p, b) : nullptr;
  const uint16_t *k = head_rows(p.k, b, hk), *v = head_rows(p.v, b, hk);
  float* dk = p.dk + (int64_t)(b * p.kv_heads + hk) * T * D;
  int t0 = first_step(doc, base - kHalo, T, KB), end = base + R < T ? base + R : T,
      t1 = (end + 16 + KB - 1) / KB;
  load_tile<D, R + 8, THREADS>(q_tile, head_rows(p.q, b, h), p.q.row, base - kHalo, T);
  load_tile<D, R, THREADS>(do_tile, head_rows(p.d_o, b, h), p.d_o.row, base, T);
  load_tile<D, KB, THREADS>(k_tile, k, p.k.row, t0 * KB, T);
  load_tile<D, KB, THREADS>(v_tile, v, p.v.row, t0 * KB, T);
  copy_commit();
  zero_shared<THREADS>(s.p, 2 * S::bytes + M::H::bytes);
  if (ln.w == 0) write_band(before_at, p.before, h, false, ln);
  if (ln.w == 1) write_band(before_turned_at, p.before, h, true, ln);
  if (ln.w == 2) write_band(after_turned_at, p.after, h, true, ln);
  SeenRows<DOC> rs, rw, rg, rd;  // scores; weights and dl; dw'; ds (owned rows)
  rs.init(ln, base - kHalo, T, R, doc, true);
  rw.init(ln, base, T, R - kHalo, doc, true);
  rg.init(ln, base, T, R, doc, false);
  rd.init(ln, base, T, OWN, doc, false);
  bool border;
  uint32_t keep = correlate_keep<DOC>(ln, base, T, doc, border);
  float g_scale = exp2_fast(gradient_exponent(p.norms + block_x() * kNorms)),
        ds_scale = p.scale / g_scale;
  float lse2[2], delta[2], taps[9][4], dq[D / 8][4];
  load_lse2(lse2, p.lse + (int64_t)block_x() * T, rw);
#pragma unroll
  for (int r = 0; r < 2; r++)
    delta[r] = rw.hi[r] < 0 ? 0.f : p.delta[(int64_t)block_x() * T + rw.hi[r]];
  clear(taps);
  clear(dq);
  uint32_t q_lane = Tile<D>::at(q_tile, ln.w * 16 + ln.x_row, ln.x_second),
           do_lane = Tile<D>::at(do_tile, ln.w * 16 + ln.x_row, ln.x_second),
           k_lane = Tile<D>::at(k_tile, ln.y_row, ln.y_second),
           v_lane = Tile<D>::at(v_tile, ln.y_row, ln.y_second);
  uint32_t late_lane = Tile<D>::at(late_tile, ln.x_row, ln.x_second);
  copy_wait<0>();
  sync_block();
  Carry s_carry, g_carry, dl_carry;
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
    load_tile<D, KB, THREADS>(late_tile, k, p.k.row, key - 16, T);
    copy_commit();
    {
      Band band(before_at, ln);
      convolve<DOC>(acc, s_carry, s, ln.w * 16, t * NO - 1, band, rw.keep, rw.border, ln);
    }
    weights_of(acc, lse2, rw, key - 8, ln);
    {
      float dw[NO][4];
      Band band(after_turned_at, ln);
      convolve<DOC>(dw, g_carry, g, ln.w * 16, t * NO - 1, band, rg.keep, rg.border, ln);
#pragma unroll
      for (int n = 0; n < NO; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) acc[n][e] *= dw[n][e] - delta[e / 2];
      put_step(dl, t * NO - 1, acc, ln);
    }
    copy_wait<0>();
    sync_block();
    {
      Band band(before_turned_at, ln);
      convolve<DOC>(acc, dl_carry, dl, ln.w * 16, t * NO - 2, band, rd.keep, rd.border, ln);
    }
    keep_seen(acc, ds_scale, rd, key - 16, ln);
    uint32_t a[NO][2];
    put_tile<NO, WR>(ds_tile, a, acc, ln);
    weight_value_product<D, NO>(dq, a, late_lane);
    if (p.d_before != nullptr)
      correlate<DOC, NO>(taps, s, ln.w * 16, dl, ln.w * 16, t * NO - 2, OWN - ln.w * 16, keep,
                         border, ln);
    sync_block();
    key_row_product<D, NW, NO, WR>(dk, ds_tile, q_tile, kHalo, key - 16, end, ln);
  }
  write_rows<D>(p.dq, b, h, dq, base, OWN, T, ln);
  if (p.d_before != nullptr)
    add_kernel_gradient(p.d_before + (int64_t)block_x() * p.before.queries * p.before.keys, taps,
                        p.before, 1.f / g_scale, before_at, ln, THREADS);
}

}  // namespace fovea::kernels::cuda::mixing
