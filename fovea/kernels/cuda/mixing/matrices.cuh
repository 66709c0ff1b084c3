// Head mixes between the groups of the contract and the matrices of bundles.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/mixing/half.cuh"
#include "fovea/kernels/cuda/mixing/problem.h"

namespace fovea::kernels::cuda::mixing {

// The power of two of the gradients of scores: one for all heads of a bundle. grid (batch)
FOVEA_KERNEL(32, 1) bundle_exponent_kernel(Problem p, Bundle u) {
  int b = block_x(), l = thread_index();
  float z = -200.f;
  if (l < u.count) {
    const float* n = p.norms + ((int64_t)b * p.heads + u.first + l) * kNorms;
    z = max_of(0.5f * (log2_fast(max_of(n[0], 1e-30f)) + log2_fast(max_of(n[1], 1e-30f))),
               log2_fast(max_of(n[2], 1e-30f)));
  }
  for (int m = 16; m; m >>= 1) z = max_of(z, shuffle_xor(z, m));
  if (l == 0) u.exponent[b] = floor_of(11.f - z);
}

// A bundle's matrix [out][in] from matrices of groups [heads / width][width][width]; turned: those
// are [in][out]. No groups: the identity. grid (1)
FOVEA_KERNEL(kMixed* kMixed, 1)
spread_matrices_kernel(Bundle u, const float* groups, int width, bool turned, float* to) {
  int out = thread_index() / kMixed, in = thread_index() % kMixed;
  float x = 0.f;
  if (out < u.count && in < u.count) {
    if (groups == nullptr) {
      x = out == in ? 1.f : 0.f;
    } else if (out / width == in / width) {
      int a = turned ? in : out, b = turned ? out : in;
      x = groups[((int64_t)(u.first + a) / width * width + a % width) * width + b % width];
    }
  }
  to[thread_index()] = x;
}

// The way back: gradients of a bundle's groups, [b][heads / width][width][width]. grid (batch)
FOVEA_KERNEL(kMixed* kMixed, 1)
gather_matrices_kernel(Problem p, Bundle u, const float* sums, int width, bool turned, float* to) {
  int b = block_x(), a = thread_index() / kMixed, c = thread_index() % kMixed;
  if (a >= u.count || c >= u.count || a / width != c / width) return;
  int out = turned ? c : a, in = turned ? a : c;
  to[(int64_t)b * p.heads * width + ((int64_t)(u.first + a) / width * width + a % width) * width +
     c % width] = sums[(b * kMixed + out) * kMixed + in];
}

}  // namespace fovea::kernels::cuda::mixing
