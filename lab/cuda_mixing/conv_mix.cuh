// Multi-Token Attention with key-query convolutions and head mixing, forward: the two slab kernels
// that head_mix.cuh lacks.
//   conv_logits_kernel    slab = conv pre(Mask0(scale q k^T)) per head           then
//   mix_forward_kernel<kMixSoftmaxOnly> conv_slab_kernel      slab 2 = Mask0(conv post(slab)) per
//   head               then mix_forward_kernel<kMixPostOnly>, row_product_kernel
// The weights' slab keeps the last 8 rows of the previous one as lead rows: the post convolution
// reads 5 rows back.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "head_mix.cuh"

// grid (B * 16, row tiles of 59); rows base .. base+58 of the slab
template <int D, bool DOC>
KERNEL(128, 3)
conv_logits_kernel(Operand rows, Operand keys, Slab out, Taps pre, const int* docs, int T,
                   int row_end, float scale) {
  constexpr int R = 64, OUT = R - kHalo, KB = 64, NO = 8;
  using S = Ring<NO, R + 8>;
  saddr k_tile = smem_base(), band_at = k_tile + KB * Tile<D>::pitch;
  S s{band_at + kBandBytes};
  Lane ln;
  saddr stage = s.p + S::bytes + ln.w * kStageBytes;
  int h = block_x() % kHeads, b = block_x() / kHeads,
      base = out.row0 + (grid_y() - 1 - block_y()) * OUT;
  const int* doc = DOC ? docs + (int64_t)b * T : nullptr;
  const uint16_t* k = keys.p + b * keys.s.b + h / keys.rep * keys.s.h;
  int t0 = first_step(doc, base - kHalo, T, KB), end = base + OUT < row_end ? base + OUT : row_end,
      t1 = (end + 8 + KB - 1) / KB;
  load_tile<D, KB, 128>(k_tile, k, keys.s.t, t0 * KB, T);
  copy_commit();
  zero_shared<128>(s.p, S::bytes);
  if (ln.w == 0) write_band(band_at, pre, h, false, ln);
  uint32_t q[D / 16][4];
  load_rows<D>(q, rows.p + b * rows.s.b + h / rows.rep * rows.s.h, rows.s.t,
               base - kHalo + ln.w * 16, T, ln);
  Rows<DOC> rs, rl;
  rs.init(ln, base - kHalo, T, R, doc, true);
  rl.init(ln, base, T, OUT, doc, true);
  copy_wait_all();
  sync_block();
  Band band(band_at, ln);
  saddr b_lane = Tile<D>::at(k_tile, ln.y_row, ln.y_second);
  Carry s_carry;
  int first = base - out.row0 + ln.w * 16, live = OUT - ln.w * 16 < row_end - base - ln.w * 16
                                                      ? OUT - ln.w * 16
                                                      : row_end - base - ln.w * 16;
  for (int t = t0; t < t1; t++) {
    float acc[NO][4];
    int key = t * KB;
    row_key_product<D, NO>(acc, q, b_lane);
    bool full = rs.full(key, KB);
#pragma unroll
    for (int n = 0; n < NO; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        acc[n][e] *= scale;
        if (!full && !rs.allowed(e / 2, key + n * 8 + ln.t * 2 + e % 2)) acc[n][e] = 0.f;
      }
      s.put(t * NO + n, ln.w * 16, ln, acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
    }
    sync_block();
    if (t + 1 < t1) load_tile<D, KB, 128>(k_tile, k, keys.s.t, (t + 1) * KB, T);
    copy_commit();
    convolve<DOC>(acc, s_carry, s, ln.w * 16, t * NO - 1, band, rl.keep, rl.border, ln);
    uint32_t x[NO][2];
#pragma unroll
    for (int n = 0; n < NO; n++) {
      x[n][0] = pack_f16(acc[n][0], acc[n][1]);
      x[n][1] = pack_f16(acc[n][2], acc[n][3]);
    }
    store_scores(stage, x, out, b, first, h, key - 8, live, ln);
    copy_wait_all();
    sync_block();
  }
  // The last step ends 8 keys short of the diagonal's step: the backward multiplies that chunk by
  // zeros.
  if (ln.l < 16 && ln.l < live && t1 * KB - 8 < out.pitch)
    store16(out.line(b, first + ln.l, h) + t1 * KB - 8, {0, 0, 0, 0});
}
template <int D>
constexpr int conv_logits_smem() {
  return 64 * Tile<D>::pitch + kBandBytes + Ring<8, 72>::bytes + 4 * kStageBytes;
}

// Lines of a slab into a chunk-major ring: line r is query row first_row + r, CHUNKS chunks from
// first_chunk on; zeros outside [low, high), past the diagonal and before the document's first key
// step. Plain loads: lanes share lines of device memory, and with 73 rows per chunk the stores do
// not conflict on banks.
template <int LINES, int CHUNKS, int THREADS, class R>
DEV void load_lines(R ring, const Slab& x, int b, int h, int first_row, int first_chunk, int low,
                    int high, const int* docs, int T) {
  constexpr int EACH = (LINES * CHUNKS + THREADS - 1) / THREADS;
  uint32_t v[EACH][4];
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    int at = e * THREADS + tid(), i = first_row + at / CHUNKS, chunk = first_chunk + at % CHUNKS;
    v[e][0] = v[e][1] = v[e][2] = v[e][3] = 0;
    if (at < LINES * CHUNKS && i >= low && i < high && chunk >= 0 && chunk * 8 <= i &&
        chunk >= tile_first_step(docs, b, i / kStep, T) * 8)
      load16(v[e], x.line(b, i - x.row0, h) + chunk * 8);
  }
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    int at = e * THREADS + tid();
    if (at < LINES * CHUNKS) sts128(ring.at(first_chunk + at % CHUNKS) + at / CHUNKS * 16, v[e]);
  }
}
// Convolution of a slab (ADJOINT: its adjoint) and Mask0: fp16, or bf16 times factor. high: end of
// the rows that `in` holds. grid (key tiles of 128, B * 16 * row tiles of 64)
template <bool DOC, bool ADJOINT, bool BF16>
KERNEL(128, 4)
conv_slab_kernel(Slab in, Slab out, Taps taps, const int* docs, int row_tiles, int high, int T,
                 float factor, const float* exponent) {
  using W = Ring<32, 73>;
  int rt = block_y() % row_tiles, h = block_y() / row_tiles % kHeads,
      b = block_y() / row_tiles / kHeads;
  int row = in.row0 + rt * kStep, key = block_x() * 128;
  if (key > row + kStep - 1 || key / kStep + 1 < tile_first_step(docs, b, row / kStep, T)) return;
  const int* doc = DOC ? docs + (int64_t)b * T : nullptr;
  saddr band_at = smem_base();
  W w{band_at + kBandBytes};
  Lane ln;
  saddr stage = w.p + W::bytes + ln.w * kStageBytes;
  int low = in.row0 - in.lead > 0 ? in.row0 - in.lead : 0;
  load_lines<72, 18, 128>(w, in, b, h, ADJOINT ? row : row - kHalo, key / 8 - 1, low, high, docs,
                          T);
  if (ln.w == 0) write_band(band_at, taps, h, ADJOINT, ln);
  if (exponent) factor *= exp2_fast(-exponent[b * kHeads * 2]);
  Rows<DOC> ro;
  ro.init(ln, row, T, kStep, doc, !ADJOINT);
  sync_block();
  Band band(band_at, ln);
  Carry carry;
  start_carry<DOC>(carry, w, ln.w * 16, key / 8, band, ro.keep, ro.border, ln);
  for (int half = 0; half < 2; half++) {
    float acc[8][4];
    int first = key + half * 64;
    convolve<DOC>(acc, carry, w, ln.w * 16, first / 8, band, ro.keep, ro.border, ln);
    bool full = ro.full(first, 64);
    uint32_t v[8][2];
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float x = acc[n][2 * r], y = acc[n][2 * r + 1];
        if (!full) {
          if (!ro.allowed(r, first + n * 8 + ln.t * 2)) x = 0.f;
          if (!ro.allowed(r, first + n * 8 + ln.t * 2 + 1)) y = 0.f;
        }
        v[n][r] = BF16 ? pack_bf16(x * factor, y * factor) : pack_f16(x, y);
      }
    store_scores(stage, v, out, b, rt * kStep + ln.w * 16, h, first, T - row - ln.w * 16, ln);
  }
}
constexpr int conv_slab_smem() { return kBandBytes + Ring<32, 73>::bytes + 4 * kStageBytes; }
