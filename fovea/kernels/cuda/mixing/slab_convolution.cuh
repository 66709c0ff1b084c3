// Convolutions together with head mixes: kernels that convolve what lies in slabs.
//   slab_logits_kernel        slab = s1 = the convolution before of s0 = scale q k^T
//   slab_convolution_kernel   slab 2 = the convolution of a slab where seen, or its adjoint
//   slab_taps_kernel          gradients of a kernel from two slabs
//
// A slab of weights keeps the last rows of the one before as lead rows: the convolution after the
// softmax reads 5 rows back.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/mixing/correlate.cuh"
#include "fovea/kernels/cuda/mixing/products.cuh"

namespace fovea::kernels::cuda::mixing {

// grid (heads of the batch, row tiles of 59). row_end: end of the slab's rows
template <int D, bool DOC>
FOVEA_KERNEL(128, 3)
slab_logits_kernel(Problem p, Bundle u, Slab out, int row_end) {
  constexpr int R = 64, OUT = R - kHalo, KB = 64, NO = 8;
  using S = Ring<NO, R + 8>;
  uint32_t k_tile = shared_base(), band_at = k_tile + KB * Tile<D>::pitch;
  S s{band_at + kBandBytes};
  Lane ln;
  uint32_t stage = s.p + S::bytes + ln.w * kStageBytes;
  int h = block_x() % u.count, b = block_x() / u.count, T = p.length,
      base = out.row0 + (grid_y() - 1 - block_y()) * OUT;
  const int32_t* doc = DOC ? documents(p, b) : nullptr;
  const uint16_t* k = head_rows(p.k, b, key_head(p, u.first + h));
  int t0 = first_step(doc, base - kHalo, T, KB), end = base + OUT < row_end ? base + OUT : row_end,
      t1 = (end + 8 + KB - 1) / KB;
  load_tile<D, KB, 128>(k_tile, k, p.k.row, t0 * KB, T);
  copy_commit();
  zero_shared<128>(s.p, S::bytes);
  if (ln.w == 0) write_band(band_at, p.before, u.first + h, false, ln);
  uint32_t q[D / 16][4];
  load_rows<D>(q, head_rows(p.q, b, u.first + h), p.q.row, base - kHalo + ln.w * 16, T, ln);
  SeenRows<DOC> rs, rl;
  rs.init(ln, base - kHalo, T, R, doc, true);
  rl.init(ln, base, T, OUT, doc, true);
  copy_wait<0>();
  sync_block();
  Band band(band_at, ln);
  uint32_t b_lane = Tile<D>::at(k_tile, ln.y_row, ln.y_second);
  Carry carry;
  int first = base - out.row0 + ln.w * 16, live = (end - base) - ln.w * 16;
  for (int t = t0; t < t1; t++) {
    float acc[NO][4];
    int key = t * KB;
    row_key_product<D, NO>(acc, q, b_lane);
    keep_seen(acc, p.scale, rs, key, ln);
    put_step(s, t * NO, acc, ln);
    sync_block();
    if (t + 1 < t1) load_tile<D, KB, 128>(k_tile, k, p.k.row, (t + 1) * KB, T);
    copy_commit();
    convolve<DOC>(acc, carry, s, ln.w * 16, t * NO - 1, band, rl.keep, rl.border, ln);
    uint32_t x[NO][2];
    pack_halves(x, acc);
    store_scores(stage, x, out, b, first, h, key - 8, live, ln);
    copy_wait<0>();
    sync_block();
  }
  // The last step ends 8 keys short of the diagonal's: the backward pass multiplies that chunk
  // by zeros.
  if (ln.l < 16 && ln.l < live && t1 * KB - 8 < out.pitch)
    store_global_16(line_of(out, b, first + ln.l, h) + t1 * KB - 8, uint4{0, 0, 0, 0});
}
template <int D>
constexpr int slab_logits_shared() {
  return 64 * Tile<D>::pitch + kBandBytes + Ring<8, 72>::bytes + 4 * kStageBytes;
}

// float16, or bfloat16 times `factor` and what undoes the bundle's power of two. high: end of the
// rows that `in` holds. grid (key tiles of 128, row tiles of 64 of the batch's heads)
template <bool DOC, bool ADJOINT, bool BF16>
FOVEA_KERNEL(128, 4)
slab_convolution_kernel(Problem p, Bundle u, Slab in, Slab out, Taps taps, int row_tiles, int high,
                        float factor) {
  using W = Ring<32, 73>;
  int rt = block_y() % row_tiles, h = block_y() / row_tiles % u.count,
      b = block_y() / row_tiles / u.count, T = p.length;
  int row = in.row0 + rt * kStep, key = block_x() * 128;
  const int32_t *docs = documents(p, b), *doc = DOC ? docs : nullptr;
  if (key > row + kStep - 1 || key / kStep + 1 < tile_first_step(docs, row / kStep, T)) return;
  uint32_t band_at = shared_base();
  W w{band_at + kBandBytes};
  Lane ln;
  uint32_t stage = w.p + W::bytes + ln.w * kStageBytes;
  int low = in.row0 - in.lead > 0 ? in.row0 - in.lead : 0;
  load_lines<72, 18, 128>(w, in, b, h, ADJOINT ? row : row - kHalo, key / 8 - 1, low, high, docs,
                          T);
  if (ln.w == 0) write_band(band_at, taps, u.first + h, ADJOINT, ln);
  if (BF16) factor *= exp2_fast(-u.exponent[b]);
  SeenRows<DOC> ro;
  ro.init(ln, row, T, kStep, doc, !ADJOINT);
  sync_block();
  Band band(band_at, ln);
  Carry carry;
  start_carry<DOC>(carry, w, ln.w * 16, key / 8, band, ro.keep, ro.border, ln);
  for (int half = 0; half < 2; half++) {
    float acc[8][4];
    int first = key + half * 64;
    convolve<DOC>(acc, carry, w, ln.w * 16, first / 8, band, ro.keep, ro.border, ln);
    keep_seen(acc, BF16 ? factor : 1.f, ro, first, ln);
    uint32_t v[8][2];
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int r = 0; r < 2; r++)
        v[n][r] = BF16 ? pack(acc[n][2 * r], acc[n][2 * r + 1])
                       : pack_half(acc[n][2 * r], acc[n][2 * r + 1]);
    store_scores(stage, v, out, b, rt * kStep + ln.w * 16, h, first, T - row - ln.w * 16, ln);
  }
}
constexpr int slab_convolution_shared() {
  return kBandBytes + Ring<32, 73>::bytes + 4 * kStageBytes;
}

// d_taps [b][h][taps] += corr(y, x) over the owned rows of y. grid (heads of the batch, row tiles)
template <bool DOC>
FOVEA_KERNEL(128, 3)
slab_taps_kernel(Problem p, Bundle u, Slab x, Slab y, Taps taps, float* d_taps, Owned own,
                 int high) {
  using X = Ring<16, 73>;
  using Y = Ring<8, 73>;
  int h = block_x() % u.count, b = block_x() / u.count, T = p.length,
      row = x.row0 + (grid_y() - 1 - block_y()) * kStep;
  if (row >= own.end || row + kStep <= own.begin) return;
  const int32_t *docs = documents(p, b), *doc = DOC ? docs : nullptr;
  X xr{shared_base()};
  Y yr{xr.p + X::bytes};
  Lane ln;
  bool border;
  uint32_t keep = correlate_keep<DOC>(ln, row, T, doc, border);
  float acc[9][4];
  clear(acc);
  for (int s = tile_first_step(docs, row / kStep, T); s <= row / kStep; s++) {
    load_lines<72, 10, 128>(xr, x, b, h, row - kHalo, s * 8 - 1, x.row0, high, docs, T);
    load_lines<64, 8, 128>(yr, y, b, h, row, s * 8, own.begin, own.end, docs, T);
    sync_block();
    correlate<DOC, 8>(acc, xr, ln.w * 16, yr, ln.w * 16, s * 8, 16, keep, border, ln);
    sync_block();
  }
  add_kernel_gradient(d_taps + head_at(p, u, b, h) * taps.queries * taps.keys, acc, taps,
                      exp2_fast(-u.exponent[b]), xr.p, ln, 128);
}
constexpr int slab_taps_shared() { return Ring<16, 73>::bytes + Ring<8, 73>::bytes; }

}  // namespace fovea::kernels::cuda::mixing
