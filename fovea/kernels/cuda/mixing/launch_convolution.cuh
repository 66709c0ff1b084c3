// Launches of the convolutions' kernels for one head size.
//
// Tiles are the fastest measured on one H200 (16 heads, T = 1,024 to 4,096): 4 warps of 16 rows
// forward, 8 backward.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/launch.cuh"
#include "fovea/kernels/cuda/mixing/convolution_forward.cuh"
#include "fovea/kernels/cuda/mixing/convolution_scores.cuh"
#include "fovea/kernels/cuda/mixing/convolution_values.cuh"
#include "fovea/kernels/cuda/mixing/launches.h"

namespace fovea::kernels::cuda::mixing {

template <int D, bool DOC>
int convolution_forward_by(const Problem& p, Stream stream) {
  constexpr int NW = 4, KB = 64, LSE_BLOCKS = DOC ? 3 : 4,
                OUT_BLOCKS = DOC || D > 96 ? 2
                             : D > 64      ? 3
                                           : 4;
  const int64_t heads = int64_t{p.batch} * p.heads;
  const int error = launch(convolution_lse_kernel<D, NW, KB, DOC, LSE_BLOCKS>,
                           grid_of(heads, tiles(p.length, NW * 16 - kHalo), 1), NW * 32,
                           convolution_lse_shared<D, NW, KB>(), stream, p);
  if (error != 0) return error;
  return launch(convolution_out_kernel<D, NW, KB, DOC, OUT_BLOCKS>,
                grid_of(heads, tiles(p.length, NW * 16 - 2 * kHalo), 1), NW * 32,
                convolution_out_shared<D, NW, KB>(), stream, p);
}
template <int D>
int convolution_forward(const Problem& p, Stream stream) {
  return p.doc_start != nullptr ? convolution_forward_by<D, true>(p, stream)
                                : convolution_forward_by<D, false>(p, stream);
}

template <int D, bool DOC>
int convolution_backward_by(const Problem& p, Stream stream) {
  constexpr int NW = DOC ? 4 : 8, KB = DOC || D > 96 ? 32 : 64, BLOCKS = DOC ? 2 : 1;
  using M = BackwardTiles<D, NW, KB>;
  static_assert(M::value_shared <= kMostShared && M::score_shared <= kMostShared);
  const dim3 grid =
      grid_of(int64_t{p.batch} * p.heads, tiles(p.length + kHalo, NW * 16 - 2 * kHalo), 1);
  const int error = launch(convolution_values_kernel<D, NW, KB, DOC, BLOCKS>, grid, NW * 32,
                           M::value_shared, stream, p);
  if (error != 0) return error;
  return launch(convolution_scores_kernel<D, NW, KB, DOC, BLOCKS>, grid, NW * 32, M::score_shared,
                stream, p);
}
template <int D>
int convolution_backward(const Problem& p, Stream stream) {
  return p.doc_start != nullptr ? convolution_backward_by<D, true>(p, stream)
                                : convolution_backward_by<D, false>(p, stream);
}

}  // namespace fovea::kernels::cuda::mixing
