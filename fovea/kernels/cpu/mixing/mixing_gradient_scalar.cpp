// The backward mixing kernels for scalar; compiler flags: fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/mixing/mixing_backward.h"

namespace fovea::kernels {

template <>
MixingGradientPass<float> mixing_gradient_scalar<float>() {
  return {mixing_gradient_floats<float, Single>, mixing_gradient_strips<float, Single>};
}
template <>
MixingGradientPass<BFloat16> mixing_gradient_scalar<BFloat16>() {
  return {mixing_gradient_floats<BFloat16, Single>, mixing_gradient_strips<BFloat16, Single>};
}

}  // namespace fovea::kernels
