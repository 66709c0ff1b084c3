// C entry points of head mixing, and of convolutions with head mixing.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "conv_mix_launch.h"

extern "C" int mix_forward(int D, const MixTensors* m, const MixProblem* p, uint16_t* slab,
                           int rows, cudaStream_t st) {
  switch (D) {
    case 64:
      return mix_forward<64>(*m, *p, slab, rows, st);
    case 96:
      return mix_forward<96>(*m, *p, slab, rows, st);
    case 128:
      return mix_forward<128>(*m, *p, slab, rows, st);
    default:
      return -1;
  }
}
extern "C" int mix_backward(int D, const MixTensors* m, const MixProblem* p, uint16_t* slab_s,
                            uint16_t* slab_g, int rows, float* norms, float* exponent, int Hkv,
                            cudaStream_t st) {
  switch (D) {
    case 64:
      return mix_backward<64>(*m, *p, slab_s, slab_g, rows, norms, exponent, Hkv, st);
    case 96:
      return mix_backward<96>(*m, *p, slab_s, slab_g, rows, norms, exponent, Hkv, st);
    case 128:
      return mix_backward<128>(*m, *p, slab_s, slab_g, rows, norms, exponent, Hkv, st);
    default:
      return -1;
  }
}
extern "C" int conv_mix_forward(int D, const MixTensors* m, const MixProblem* p, const Taps* pre,
                                const Taps* post, uint16_t* slab, uint16_t* slab2, int rows,
                                cudaStream_t st) {
#define WIDTH(d)                                                                          \
  case d:                                                                                 \
    return p->doc ? conv_mix_forward<d, true>(*m, *p, *pre, *post, slab, slab2, rows, st) \
                  : conv_mix_forward<d, false>(*m, *p, *pre, *post, slab, slab2, rows, st);
  switch (D) { WIDTH(64) WIDTH(96) WIDTH(128) default : return -1; }
}
#undef WIDTH
extern "C" int conv_mix_backward(int D, const MixTensors* m, const MixProblem* p, const Taps* pre,
                                 const Taps* post, float* d_taps_pre, float* d_taps_post,
                                 const ConvMixSlabs* slabs, int rows, float* norms, float* exponent,
                                 int Hkv, cudaStream_t st) {
#define WIDTH(d)                                                                              \
  case d:                                                                                     \
    return p->doc ? conv_mix_backward<d, true>(*m, *p, *pre, *post, d_taps_pre, d_taps_post,  \
                                               *slabs, rows, norms, exponent, Hkv, st)        \
                  : conv_mix_backward<d, false>(*m, *p, *pre, *post, d_taps_pre, d_taps_post, \
                                                *slabs, rows, norms, exponent, Hkv, st);
  switch (D) { WIDTH(64) WIDTH(96) WIDTH(128) default : return -1; }
}
