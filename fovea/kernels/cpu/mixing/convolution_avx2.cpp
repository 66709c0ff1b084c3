// The loops of convolution.h for avx2; its compiler flags stand in fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/mixing/convolution_rows.h"

namespace fovea::kernels {

template <>
const ConvolutionTable<float>& convolution_avx2<float>() {
  return kConvolutionTable<float>;
}
template <>
const ConvolutionTable<double>& convolution_avx2<double>() {
  return kConvolutionTable<double>;
}

}  // namespace fovea::kernels
