// The CUDA mixing kernels, compiled for the host (emulated_units.cpp).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cuda/mixing/launch_convolution.cuh"
#include "fovea/kernels/cuda/mixing/launch_mixes.cuh"
#include "fovea/kernels/cuda/mixing/launch_products.cuh"

namespace fovea::kernels::cuda::mixing {

std::span<const HeadSize> head_sizes() {
  static const HeadSize all[] = {head_size_of<64>(), head_size_of<96>()};
  return all;
}

}  // namespace fovea::kernels::cuda::mixing
