// Mixes of a bundle's heads on tensor cores: a product of 16 keys x kMixed heads with a matrix.
//
// A warp holds the keys of one query row. A thread has heads 2t, 2t+1, 8+2t, 9+2t ("its heads",
// counted by q) of keys g and g+8.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/mixing/slab.cuh"

namespace fovea::kernels::cuda::mixing {

// Matrix as B fragments: out[pair][n] = sum_k in[pair][k] W[n][k] (or W[k][n] when transposed).
struct MixFragment {
  uint32_t r[2][2];
  FOVEA_DEVICE MixFragment(const float* w, bool transposed, const Lane& ln) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int k = 0; k < 2; k++) {
        int o = n * 8 + ln.g, i = k * 8 + ln.t * 2;
        r[n][k] = transposed ? pack_half(w[i * kMixed + o], w[(i + 1) * kMixed + o])
                             : pack_half(w[o * kMixed + i], w[o * kMixed + i + 1]);
      }
  }
};
// y[n][e]: head 8n + 2t + e%2 of key g + 8(e/2), from A fragments of the same shape.
FOVEA_DEVICE void mix(float (&y)[2][4], const uint32_t (&a)[4], const MixFragment& m) {
#pragma unroll
  for (int n = 0; n < 2; n++) {
#pragma unroll
    for (int e = 0; e < 4; e++) y[n][e] = 0.f;
    mma_half(y[n], a, m.r[n][0], m.r[n][1]);
  }
}
FOVEA_DEVICE void as_fragment(uint32_t (&a)[4], const float (&y)[2][4]) {
  a[0] = pack_half(y[0][0], y[0][1]);
  a[1] = pack_half(y[0][2], y[0][3]);
  a[2] = pack_half(y[1][0], y[1][1]);
  a[3] = pack_half(y[1][2], y[1][3]);
}
FOVEA_DEVICE void as_bf16(uint32_t (&a)[4], const float (&y)[2][4], float f) {
  a[0] = pack(y[0][0] * f, y[0][1] * f);
  a[1] = pack(y[0][2] * f, y[0][3] * f);
  a[2] = pack(y[1][0] * f, y[1][1] * f);
  a[3] = pack(y[1][2] * f, y[1][3] * f);
}

// Head q of a thread's four.
FOVEA_DEVICE int head_of(const Lane& ln, int q) { return (q / 2) * 8 + ln.t * 2 + q % 2; }

// What query row i sees, and the steps of keys that a warp of WARPS walks.
template <int WARPS>
struct MixRow {
  int i, lo, s0, steps;
  FOVEA_DEVICE MixRow(const Problem& p, int b, int row, const Lane& ln) {
    const int32_t* doc = documents(p, b);
    i = row;
    lo = doc ? doc[i] : 0;
    s0 = tile_first_step(doc, i / kStep, p.length) + ln.w;
    steps = (i / kStep - s0 + WARPS) / WARPS;  // s0, s0 + WARPS, ...
    if (steps < 0) steps = 0;
  }
  // First key of step `s`; a second sweep goes on at `steps`.
  FOVEA_DEVICE int key_of(int s) const {
    return (s0 + (s < steps ? s : s - steps) * WARPS) * kStep;
  }
  FOVEA_DEVICE bool full(int key) const { return key >= lo && key + kStep - 1 <= i; }
  FOVEA_DEVICE bool hidden(int j) const { return j < lo || j > i; }
};

// Zeros in y where the row does not see the key; keys g and g + 8 of chunk c.
template <int WARPS>
FOVEA_DEVICE void hide(float (&y)[2][4], const MixRow<WARPS>& row, int key, int c, const Lane& ln) {
  if (row.full(key)) return;
#pragma unroll
  for (int n = 0; n < 2; n++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      if (row.hidden(key + c * 8 + ln.g + 8 * (e / 2))) y[n][e] = 0.f;
}
// Weights of mixed logits.
template <int WARPS>
FOVEA_DEVICE void mixed_weights(float (&y)[2][4], const float (&lse2)[4], const MixRow<WARPS>& row,
                                int key, int c, const Lane& ln) {
#pragma unroll
  for (int n = 0; n < 2; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) y[n][e] = exp2_fast(y[n][e] * kLog2e - lse2[n * 2 + e % 2]);
  hide(y, row, key, c, ln);
}
FOVEA_DEVICE void load_head_lse2(float (&lse2)[4], const Problem& p, const Bundle& u, int b, int i,
                                 const Lane& ln) {
#pragma unroll
  for (int q = 0; q < 4; q++) {
    int h = head_of(ln, q);
    lse2[q] = h < u.count ? p.lse[head_at(p, u, b, h) * p.length + i] * kLog2e : 0.f;
  }
}

// delta of a row and its four heads: over lanes, then over warps, less the gradient of lse.
// shared: 64 bytes a warp.
template <int WARPS>
FOVEA_DEVICE void sum_delta(float (&delta)[4], const Problem& p, const Bundle& u, int b, int i,
                            uint32_t shared, const Lane& ln) {
#pragma unroll
  for (int q = 0; q < 4; q++) {
    for (int d = 4; d < 32; d <<= 1) delta[q] += shuffle_xor(delta[q], d);
    if (ln.g == 0) store_shared(shared + ln.w * 64 + head_of(ln, q) * 4, float_bits(delta[q]));
  }
  sync_block();
#pragma unroll
  for (int q = 0; q < 4; q++) {
    int h = head_of(ln, q);
    delta[q] = p.d_lse != nullptr && h < u.count
                   ? -p.d_lse[head_at(p, u, b, h) * p.length + i] * exp2_fast(u.exponent[b])
                   : 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) delta[q] += bits_float(load_shared(shared + w * 64 + h * 4));
  }
}

// Sum of a matrix' gradient over the block, added to [b][out][in] in device memory. sums: 1024
// bytes of zeros, a barrier since.
FOVEA_DEVICE void add_matrix_gradient(float* dst, int b, const float (&d)[2][4], float factor,
                                      uint32_t sums, const Lane& ln, int threads) {
#pragma unroll
  for (int n = 0; n < 2; n++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      add_shared(sums + ((ln.g + 8 * (e / 2)) * kMixed + n * 8 + ln.t * 2 + e % 2) * 4, d[n][e]);
  sync_block();
  for (int e = thread_index(); e < kMixed * kMixed; e += threads)
    add_global(dst + b * kMixed * kMixed + e, bits_float(load_shared(sums + e * 4)) * factor);
}

}  // namespace fovea::kernels::cuda::mixing
