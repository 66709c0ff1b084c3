// The loops of convolution.h for scalar; its compiler flags stand in fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/mixing/convolution_rows.h"

namespace fovea::kernels {

template <>
const ConvolutionTable<float>& convolution_scalar<float>() {
  return kConvolutionTable<float>;
}
template <>
const ConvolutionTable<double>& convolution_scalar<double>() {
  return kConvolutionTable<double>;
}

}  // namespace fovea::kernels
