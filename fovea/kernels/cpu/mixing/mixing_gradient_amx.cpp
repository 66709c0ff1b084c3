// The backward mixing kernels for amx: products and convolutions by matrix tiles; compiler flags:
// fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#define FOVEA_ROW_TILES 1  // as in the forward pass

#include "fovea/kernels/cpu/mixing/mixing_backward.h"

namespace fovea::kernels {

MixingGradientPass<BFloat16> mixing_gradient_amx() {
  return {mixing_gradient_floats<BFloat16, TilePair>, mixing_gradient_strips<BFloat16, TilePair>};
}

}  // namespace fovea::kernels
