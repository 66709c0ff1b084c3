// Launches of what has no head size: mixes, and convolutions of slabs.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/launch.cuh"
#include "fovea/kernels/cuda/mixing/launches.h"
#include "fovea/kernels/cuda/mixing/matrices.cuh"
#include "fovea/kernels/cuda/mixing/mix_backward.cuh"
#include "fovea/kernels/cuda/mixing/slab_convolution.cuh"

namespace fovea::kernels::cuda::mixing {

int spread_matrices(const Bundle& u, const float* groups, int width, bool turned, float* to,
                    Stream stream) {
  return launch(spread_matrices_kernel, grid_of(1, 1, 1), kMixed * kMixed, 0, stream, u, groups,
                width, turned, to);
}
int gather_matrices(const Problem& p, const Bundle& u, const float* sums, int width, bool turned,
                    float* to, Stream stream) {
  return launch(gather_matrices_kernel, grid_of(p.batch, 1, 1), kMixed * kMixed, 0, stream, p, u,
                sums, width, turned, to);
}
int bundle_exponent(const Problem& p, const Bundle& u, Stream stream) {
  return launch(bundle_exponent_kernel, grid_of(p.batch, 1, 1), 32, 0, stream, p, u);
}

int mix_forward(const Problem& p, const Bundle& u, const Slab& x, int rows, MixStage stage,
                Stream stream) {
  const auto run = [&](auto kernel) {
    return launch(kernel, grid_of(rows, p.batch, 1), kMixWarps * 32, mix_forward_shared(), stream,
                  p, u, x);
  };
  switch (stage) {
    case MixStage::softmax:
      return run(mix_forward_kernel<MixStage::softmax>);
    case MixStage::after:
      return run(mix_forward_kernel<MixStage::after>);
    default:
      return run(mix_forward_kernel<MixStage::all>);
  }
}
int mix_weights(const Problem& p, const Bundle& u, const Slab& in, const Slab& out, int rows,
                Stream stream) {
  return launch(mix_weights_kernel, grid_of(rows, p.batch, 1), kMixWarps * 32, mix_weights_shared(),
                stream, p, u, in, out);
}

// Blocks of the kernels that sum gradients of matrices: several rows each beyond this many.
constexpr int kWalkers = 8 * 132;
inline dim3 walkers(const Problem& p, int rows) {
  const int most = tiles(kWalkers, p.batch);
  return grid_of(rows < most ? rows : most, p.batch, 1);
}

int mix_backward(const Problem& p, const Bundle& u, const Slab& s, const Slab& g, int rows,
                 Stream stream) {
  return launch(mix_backward_kernel, walkers(p, rows), kMixBackwardThreads, mix_backward_shared(),
                stream, p, u, s, g, rows);
}
int mix_after_backward(const Problem& p, const Bundle& u, const Slab& y, const Slab& g, int rows,
                       Owned own, Stream stream) {
  return launch(mix_after_backward_kernel, walkers(p, rows), kMixBackwardThreads,
                mix_after_backward_shared(), stream, p, u, y, g, rows, own);
}
int mix_softmax_backward(const Problem& p, const Bundle& u, const Slab& s, const Slab& w,
                         const Slab& g, int rows, Owned own, Stream stream) {
  return launch(mix_softmax_backward_kernel, walkers(p, rows), kMixBackwardThreads,
                mix_softmax_backward_shared(), stream, p, u, s, w, g, rows, own);
}

template <bool DOC>
int slab_convolution_by(const Problem& p, const Bundle& u, const Slab& in, const Slab& out,
                        const Taps& taps, SlabConvolution what, int row_tiles, Stream stream) {
  const int rows_end = in.row0 + row_tiles * kStep, end = rows_end < p.length ? rows_end : p.length;
  const dim3 grid = grid_of(tiles(end, 128), int64_t{p.batch} * u.count * row_tiles, 1);
  const auto run = [&](auto kernel, float factor) {
    return launch(kernel, grid, 128, slab_convolution_shared(), stream, p, u, in, out, taps,
                  row_tiles, end, factor);
  };
  switch (what) {
    case SlabConvolution::forward:
      return run(slab_convolution_kernel<DOC, false, false>, 1.0f);
    case SlabConvolution::adjoint:
      return run(slab_convolution_kernel<DOC, true, false>, 1.0f);
    default:
      return run(slab_convolution_kernel<DOC, true, true>, p.scale);
  }
}
int slab_convolution(const Problem& p, const Bundle& u, const Slab& in, const Slab& out,
                     const Taps& taps, SlabConvolution what, int row_tiles, Stream stream) {
  return p.doc_start != nullptr
             ? slab_convolution_by<true>(p, u, in, out, taps, what, row_tiles, stream)
             : slab_convolution_by<false>(p, u, in, out, taps, what, row_tiles, stream);
}

int slab_taps(const Problem& p, const Bundle& u, const Slab& x, const Slab& y, const Taps& taps,
              float* d_taps, Owned own, int row_tiles, int end, Stream stream) {
  const auto run = [&](auto kernel) {
    return launch(kernel, grid_of(int64_t{p.batch} * u.count, row_tiles, 1), 128,
                  slab_taps_shared(), stream, p, u, x, y, taps, d_taps, own, end);
  };
  return p.doc_start != nullptr ? run(slab_taps_kernel<true>) : run(slab_taps_kernel<false>);
}

}  // namespace fovea::kernels::cuda::mixing
