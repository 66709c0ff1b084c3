// Launches of the passes over rows around the backward kernels.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/attention/backward_rows.cuh"
#include "fovea/kernels/cuda/attention/units.h"
#include "fovea/kernels/cuda/launch.cuh"

namespace fovea::kernels::cuda {

template <int D>
int before_backward(const Problem& p, Stream stream) {
  const int error =
      launch(backward_rows<D>, grid_of((p.padded + 3) / 4, p.heads, p.batch), 128, 0, stream, p);
  if (error != 0 || p.d_sink_logit == nullptr) return error;
  return launch(sink_gradient<D>, grid_of(p.heads, p.batch, 1), 32, 0, stream, p);
}

// dk and dv of several launches from their sums.
template <int D>
int finish_keys(const Problem& p, Stream stream) {
  const dim3 grid = grid_of((p.keys + 3) / 4, p.kv_heads, p.batch);
  const auto finish = [&](const float* sums, const Rows& out) {
    return launch(finish_rows<D>, grid, 128, 0, stream, p, sums, out, p.kv_heads, p.keys, 1.0f,
                  false);
  };
  const int error = finish(p.dk_sum, p.dk);
  return error != 0 ? error : finish(p.dv_sum, p.dv);
}

// A constant scale is applied to dq here and to dk in the kernel.
template <int D>
int after_mma_backward(const Problem& p, bool per_row, bool focus, Stream stream) {
  const int error = launch(finish_rows<D>, grid_of((p.queries + 3) / 4, p.heads, p.batch), 128, 0,
                           stream, p, static_cast<const float*>(p.dq_sum), p.dq, p.heads, p.queries,
                           per_row ? 1.0f : p.scale, p.d_temperature != nullptr);
  return error != 0 || !focus ? error : finish_keys<D>(p, stream);
}

template <int D>
int after_wgmma_backward(const Problem& p, bool per_row, bool focus, Stream stream) {
  const dim3 grid = grid_of((p.queries + 31) / 32, p.heads, p.batch);
  const float factor = per_row ? 1.0f : p.scale;
  const bool temperature = p.d_temperature != nullptr;
  if (!focus) return launch(finish_tiles<D, false>, grid, 128, 0, stream, p, factor, temperature);
  const int error = launch(finish_tiles<D, true>, grid, 128, 0, stream, p, factor, temperature);
  return error != 0 ? error : finish_keys<D>(p, stream);
}

}  // namespace fovea::kernels::cuda
