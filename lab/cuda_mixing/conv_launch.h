// Grid and shared-memory sizes of the convolution kernels for one tile choice (NW warps of 16 rows,
// KB keys per step).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "conv_backward.cuh"
#include "conv_forward.cuh"
#include "launch.h"

inline int tiles(int n, int m) { return (n + m - 1) / m; }

template <int D, int NW, int KB, bool DOC, int BLOCKS>
int conv_lse(const ConvForward& p, int B, Stream st) {
  return launch(conv_lse_kernel<D, NW, KB, DOC, BLOCKS>, B * p.H, tiles(p.T, NW * 16 - kHalo),
                NW * 32, conv_lse_smem<D, NW, KB>(), st, p);
}
template <int D, int NW, int KB, bool DOC, int BLOCKS>
int conv_out(const ConvForward& p, int B, Stream st) {
  return launch(conv_out_kernel<D, NW, KB, DOC, BLOCKS>, B * p.H, tiles(p.T, NW * 16 - 2 * kHalo),
                NW * 32, conv_out_smem<D, NW, KB>(), st, p);
}
template <int D>
int row_norms(const ConvBackward& p, float* norms, int B, Stream st) {
  int e = clear(norms, sizeof(float) * 2 * B * p.H, st);
  return e ? e : launch(row_norm_kernel<D>, tiles(p.T, 64), B * p.H, 256, 16, st, p, norms);
}
template <int D, int NW, int KB, bool DOC, int BLOCKS>
int conv_value(const ConvBackward& p, int B, Stream st) {
  return launch(conv_value_kernel<D, NW, KB, DOC, BLOCKS>, B * p.H,
                tiles(p.T + kHalo, NW * 16 - 2 * kHalo), NW * 32,
                BackwardTiles<D, NW, KB>::value_smem, st, p);
}
template <int D, int NW, int KB, bool DOC, int BLOCKS>
int conv_score(const ConvBackward& p, int B, Stream st) {
  return launch(conv_score_kernel<D, NW, KB, DOC, BLOCKS>, B * p.H,
                tiles(p.T + kHalo, NW * 16 - 2 * kHalo), NW * 32,
                BackwardTiles<D, NW, KB>::score_smem, st, p);
}
