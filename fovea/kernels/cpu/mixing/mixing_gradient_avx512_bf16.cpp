// The backward mixing kernels for avx512_bf16: products of pairs; compiler flags:
// fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/mixing/mixing_backward.h"

namespace fovea::kernels {

MixingGradientPass<BFloat16> mixing_gradient_avx512_bf16() {
  return {mixing_gradient_floats<BFloat16, Pair>, mixing_gradient_strips<BFloat16, Pair>};
}

}  // namespace fovea::kernels
