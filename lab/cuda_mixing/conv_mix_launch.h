// Slab by slab: convolutions and head mixing, forward.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "conv_mix_backward.cuh"
#include "head_mix_launch.h"

constexpr int kLead = 8;
template <bool DOC, bool ADJOINT, bool BF16>
int conv_slab(Slab in, Slab out, Taps taps, int n, const MixProblem& p, float factor,
              const float* exponent, Stream st) {
  int end = std::min(in.row0 + n * kStep, p.T);
  return launch(conv_slab_kernel<DOC, ADJOINT, BF16>, tiles(end, 128), p.B * kHeads * n, 128,
                conv_slab_smem(), st, in, out, taps, p.doc, n, end, p.T, factor, exponent);
}
// slab: B * (8 + rows) * 16 * slab_pitch(T) values, slab2: B * rows * 16 * slab_pitch(T); rows a
// multiple of 64.
template <int D, bool DOC>
int conv_mix_forward(const MixTensors& m, const MixProblem& p, Taps pre, Taps post, uint16_t* slab,
                     uint16_t* slab2, int rows, Stream st) {
  int e = 0, pitch = slab_pitch(p.T);
  int64_t line = (int64_t)kHeads * pitch;
  for (int r = 0; r < p.T && !e; r += rows) {
    int n = p.T - r < rows ? tiles(p.T - r, kStep) : rows / kStep,
        end = std::min(r + n * kStep, p.T);
    Slab x{slab, rows, pitch, r, kLead}, y{slab2, rows, pitch, r};
    for (int b = 0; r && b < p.B && !e; b++) {  // lead rows: the end of the previous slab
      uint16_t* first = slab + b * (rows + kLead) * line;
      e = copy_device(first, first + rows * line, kLead * line * 2, st);
    }
    if (!e)
      e = launch(conv_logits_kernel<D, DOC>, p.B * kHeads, tiles(end - r, 64 - kHalo), 128,
                 conv_logits_smem<D>(), st, m.q, m.k, x, pre, p.doc, p.T, end, p.scale);
    if (!e)
      e = launch(mix_forward_kernel<kMixSoftmaxOnly>, end - r, p.B, kMixWarps * 32,
                 mix_forward_smem(), st, p, x);
    if (!e) e = conv_slab<DOC, false, false>(x, y, post, n, p, 1.f, nullptr, st);
    if (!e)
      e = launch(mix_forward_kernel<kMixPostOnly>, end - r, p.B, kMixWarps * 32, mix_forward_smem(),
                 st, p, y);
    if (!e) e = row_product<D>(y, m.v, m.o, m.so, n, r, end, p.doc, p.B, p.T, st);
  }
  return e;
}

struct ConvMixSlabs {
  uint16_t *s, *w, *y, *g;
};  // each B * rows * 16 * slab_pitch(T) values
// Frames of `rows` query rows (a multiple of 64, 128 or more) that overlap by 64: a frame owns all
// but 32 rows at either inner end, since weights reach 5 rows back and gradients of scores 10 rows
// ahead. Rows that are not owned are computed and not counted.
template <int D, bool DOC>
int conv_mix_backward(const MixTensors& m, const MixProblem& p, Taps pre, Taps post,
                      float* d_taps_pre, float* d_taps_post, ConvMixSlabs slabs, int rows,
                      float* norms, float* exponent, int Hkv, Stream st) {
  int e = mix_exponents<D>(m, p, norms, exponent, Hkv, st), pitch = slab_pitch(p.T),
      rep = kHeads / Hkv;
  for (int r = 0; !e; r += rows - kStep) {
    bool last = r + rows >= p.T;
    int n = last ? tiles(p.T - r, kStep) : rows / kStep, end = std::min(r + n * kStep, p.T),
        own0 = r ? r + kStep / 2 : 0, own1 = last ? p.T : end - kStep / 2;
    Slab s{slabs.s, rows, pitch, r}, w{slabs.w, rows, pitch, r}, y{slabs.y, rows, pitch, r},
        g{slabs.g, rows, pitch, r};
    int walkers = std::min(end - r, tiles(kWalkers, p.B));
    e = launch(conv_logits_kernel<D, DOC>, p.B * kHeads, tiles(end - r, 64 - kHalo), 128,
               conv_logits_smem<D>(), st, m.q, m.k, s, pre, p.doc, p.T, end, p.scale);
    if (!e) e = tile_product<D>(m.d_o, m.v, g, n, p.doc, p.B, p.T, 1.f, exponent, st);
    if (!e)
      e = launch(mix_weights_kernel, end - r, p.B, kMixWarps * 32, mix_weights_smem(), st, p, s, w);
    if (!e) e = conv_slab<DOC, false, false>(w, y, post, n, p, 1.f, nullptr, st);
    if (!e)
      e = launch(mix_post_backward_kernel, walkers, p.B, kMixBackwardWarps * 32,
                 mix_post_backward_smem(), st, p, y, g, end - r, own0, own1);
    if (!e) e = key_product<D>(y, m.d_o, m.dv, rep, own0, own1, p.doc, p.B, p.T, st);
    if (!e)
      e = launch(conv_gradient_kernel<DOC>, p.B * kHeads, n, 128, conv_gradient_smem(), st, w, g,
                 post, d_taps_post, p.doc, own0, own1, end, p.T, exponent);
    if (!e) e = conv_slab<DOC, true, false>(g, y, post, n, p, 1.f, nullptr, st);
    if (!e)
      e = launch(mix_softmax_backward_kernel, walkers, p.B, kMixBackwardWarps * 32,
                 mix_softmax_backward_smem(), st, p, s, w, y, end - r, own0, own1);
    if (!e) e = tile_product<D, true>(m.q, m.k, w, n, p.doc, p.B, p.T, p.scale, nullptr, st);
    if (!e)
      e = launch(conv_gradient_kernel<DOC>, p.B * kHeads, n, 128, conv_gradient_smem(), st, w, y,
                 pre, d_taps_pre, p.doc, own0, own1, end, p.T, exponent);
    if (!e) e = conv_slab<DOC, true, true>(y, s, pre, n, p, p.scale, exponent, st);
    if (!e) e = row_product<D>(s, m.k, m.dq, m.sdq, n, own0, own1, p.doc, p.B, p.T, st);
    if (!e) e = key_product<D>(s, m.q, m.dk, rep, own0, own1, p.doc, p.B, p.T, st);
    if (last) break;
  }
  return e;
}
