// Launches of the mma.sync kernels.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/attention/backward_mma.cuh"
#include "fovea/kernels/cuda/attention/forms.cuh"
#include "fovea/kernels/cuda/attention/forward_mma.cuh"
#include "fovea/kernels/cuda/attention/units.h"
#include "fovea/kernels/cuda/launch.cuh"

namespace fovea::kernels::cuda {

template <int D, ScoreForm kScore, MaskForm kMask>
int mma_forward(const Problem& p, Stream stream) {
  using V = MaskOf<kMask>;
  using Shape = ForwardMmaShape<D>;
  const int64_t tiles = (V::rows(p) + Shape::kQueries - 1) / Shape::kQueries;
  return launch(forward_mma_kernel<D, ScoreOf<kScore>, V>, grid_of(tiles, p.heads, p.batch),
                Shape::kThreads, Shape::kShared, stream, p);
}

template <int D, ScoreForm kScore, MaskForm kMask>
int mma_backward(const Problem& p, Stream stream) {
  using V = MaskOf<kMask>;
  using Shape = BackwardMmaShape<D>;
  const int64_t tiles = (V::keys(p) + Shape::kKeys - 1) / Shape::kKeys;
  return launch(backward_mma_kernel<D, ScoreOf<kScore>, V>, grid_of(tiles, p.kv_heads, p.batch),
                Shape::kThreads, Shape::kShared, stream, p);
}

}  // namespace fovea::kernels::cuda
