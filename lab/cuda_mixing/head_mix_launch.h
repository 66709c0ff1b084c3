// Slab by slab: head mixing forward and backward.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include "conv_launch.h"
#include "head_mix.cuh"

struct MixTensors {  // bf16 [B][heads][T][D]; o and dq are written
  Operand q, k, v, d_o;
  uint16_t *o, *dq;
  Strides so, sdq;
  float *dk, *dv;  // float32, zero on entry
};
constexpr int kWalkers = 8 * 132;  // blocks of the kernels that sum matrix gradients: at most this
                                   // many, several rows each beyond
inline int slab_pitch(int T) { return tiles(T, 128) * 128; }

template <int D, bool MASK = false>
int tile_product(Operand rows, Operand keys, Slab x, int n, const int* doc, int B, int T,
                 float factor, const float* exponent, Stream st) {
  return launch(tile_product_kernel<D, MASK>,
                tiles(std::min(x.row0 + n * kStep, T), kProductSteps * kStep),
                B * kHeads * tiles(n * kStep, kProductRows), 256, tile_product_smem<D>(), st, rows,
                keys, x, tiles(n * kStep, kProductRows), n * kStep, doc, T, factor, exponent);
}
template <int D>
int row_product(Slab x, Operand v, uint16_t* out, Strides so, int n, int own0, int own1,
                const int* doc, int B, int T, Stream st) {
  return launch(row_product_kernel<D>, B * kHeads, n, 128, product_smem<D>(), st, x, v, out, so,
                own0, own1, doc, T);
}
template <int D>
int key_product(Slab x, Operand y, float* out, int rep, int own0, int own1, const int* doc, int B,
                int T, Stream st) {
  return launch(key_product_kernel<D>, B * kHeads / rep, tiles(own1, kStep), 128, product_smem<D>(),
                st, x, y, out, rep, own0, own1, doc, T);
}

// slab_s (and slab_g for the backward): B * rows * 16 * slab_pitch(T) 16-bit values; rows a
// multiple of 64.
template <int D>
int mix_forward(const MixTensors& m, const MixProblem& p, uint16_t* slab, int rows, Stream st) {
  int e = 0;
  for (int r = 0; r < p.T && !e; r += rows) {
    int n = p.T - r < rows ? tiles(p.T - r, kStep) : rows / kStep,
        end = std::min(r + n * kStep, p.T);
    Slab x{slab, rows, slab_pitch(p.T), r};
    e = tile_product<D>(m.q, m.k, x, n, p.doc, p.B, p.T, p.scale, nullptr, st);
    if (!e)
      e = launch(mix_forward_kernel<kMixBoth>, end - r, p.B, kMixWarps * 32, mix_forward_smem(), st,
                 p, x);
    if (!e) e = row_product<D>(x, m.v, m.o, m.so, n, r, end, p.doc, p.B, p.T, st);
  }
  return e;
}
template <int D>
int mix_exponents(const MixTensors& m, const MixProblem& p, float* norms, float* exponent, int Hkv,
                  Stream st) {
  ConvBackward c{};
  c.d_o = m.d_o.p;
  c.v = m.v.p;
  c.so = m.d_o.s;
  c.sv = m.v.s;
  c.H = kHeads;
  c.Hkv = Hkv;
  c.T = p.T;
  int e = row_norms<D>(c, norms, p.B, st);
  return e ? e : launch(mix_exponent_kernel, p.B, 1, 32, 16, st, (const float*)norms, exponent);
}
template <int D>
int mix_backward(const MixTensors& m, const MixProblem& p, uint16_t* slab_s, uint16_t* slab_g,
                 int rows, float* norms, float* exponent, int Hkv, Stream st) {
  int e = mix_exponents<D>(m, p, norms, exponent, Hkv, st);
  for (int r = 0; r < p.T && !e; r += rows) {
    int n = p.T - r < rows ? tiles(p.T - r, kStep) : rows / kStep,
        end = std::min(r + n * kStep, p.T);
    Slab s{slab_s, rows, slab_pitch(p.T), r}, g{slab_g, rows, slab_pitch(p.T), r};
    e = tile_product<D>(m.q, m.k, s, n, p.doc, p.B, p.T, p.scale, nullptr, st);
    if (!e) e = tile_product<D>(m.d_o, m.v, g, n, p.doc, p.B, p.T, 1.f, exponent, st);
    if (!e)
      e = launch(mix_backward_kernel, std::min(end - r, tiles(kWalkers, p.B)), p.B,
                 kMixBackwardWarps * 32, mix_backward_smem(), st, p, s, g, end - r);
    if (!e) e = row_product<D>(s, m.k, m.dq, m.sdq, n, r, end, p.doc, p.B, p.T, st);
    if (!e) e = key_product<D>(s, m.q, m.dk, kHeads / Hkv, r, end, p.doc, p.B, p.T, st);
    if (!e) e = key_product<D>(g, m.d_o, m.dv, kHeads / Hkv, r, end, p.doc, p.B, p.T, st);
  }
  return e;
}
