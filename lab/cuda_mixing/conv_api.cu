// C entry points of the convolution kernels for one head width: nvcc -DHEAD_WIDTH=96. parts: bit 0,
// 1, 2 = first, second, third kernel.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "conv_launch.h"
#define NAME2(a, b) a##b
#define NAME(a, b) NAME2(a, b)
constexpr int D = HEAD_WIDTH;
constexpr int kWide = D == 96 ? 6 : 8,
              kWideBlocks =
                  D == 96 ? 2 : 1;  // variant 3: more rows per block, fewer of them in the halo
constexpr int kOutBlocks = D <= 64 ? 4 : D <= 96 ? 3 : 2;

extern "C" int NAME(conv_forward_, HEAD_WIDTH)(const ConvForward* p, int B, int variant, int parts,
                                               cudaStream_t st) {
  int e = 0;
  if (p->doc) {
    if (parts & 1) e = conv_lse<D, 4, 64, true, 3>(*p, B, st);
    if (!e && parts & 2) e = conv_out<D, 4, 64, true, 2>(*p, B, st);
    return e;
  }
  if (parts & 1) {
    if (variant == 0)
      e = conv_lse<D, 4, 64, false, 4>(*p, B, st);
    else if (variant == 1)
      e = conv_lse<D, 8, 64, false, 2>(*p, B, st);
    else if (variant == 2)
      e = conv_lse<D, 4, 32, false, 4>(*p, B, st);
    else
      e = conv_lse<D, kWide, 64, false, 2>(*p, B, st);
  }
  if (!e && parts & 2) {
    if (variant == 0)
      e = conv_out<D, 4, 64, false, kOutBlocks>(*p, B, st);
    else if (variant == 1)
      e = conv_out<D, 8, 64, false, (D <= 64 ? 2 : 1)>(*p, B, st);
    else if (variant == 2)
      e = conv_out<D, 4, 32, false, kOutBlocks>(*p, B, st);
    else
      e = conv_out<D, kWide, 64, false, (D <= 96 ? 2 : 1)>(*p, B, st);
  }
  return e;
}
extern "C" int NAME(conv_backward_, HEAD_WIDTH)(const ConvBackward* p, float* norms, int B,
                                                int variant, int parts, cudaStream_t st) {
  int e = 0;
  if (parts & 1) e = row_norms<D>(*p, norms, B, st);
  if (p->doc) {
    if (!e && parts & 2) e = conv_value<D, 4, 32, true, 2>(*p, B, st);
    if (!e && parts & 4) e = conv_score<D, 4, 32, true, 2>(*p, B, st);
    return e;
  }
  if (!e && parts & 2) {
    if (variant == 0)
      e = conv_value<D, 4, 32, false, 2>(*p, B, st);
    else if (variant == 1)
      e = conv_value<D, 8, (D <= 96 ? 64 : 32), false, 1>(*p, B, st);
    else if (variant == 2)
      e = conv_value<D, 4, 32, false, (D <= 96 ? 3 : 2)>(*p, B, st);
    else
      e = conv_value<D, kWide, 32, false, kWideBlocks>(*p, B, st);
  }
  if (!e && parts & 4) {
    if (variant == 0)
      e = conv_score<D, 4, 32, false, 2>(*p, B, st);
    else if (variant == 1)
      e = conv_score<D, 8, (D <= 96 ? 64 : 32), false, 1>(*p, B, st);
    else if (variant == 2)
      e = conv_score<D, 4, 32, false, (D <= 64 ? 3 : 2)>(*p, B, st);
    else
      e = conv_score<D, kWide, 32, false, kWideBlocks>(*p, B, st);
  }
  return e;
}
