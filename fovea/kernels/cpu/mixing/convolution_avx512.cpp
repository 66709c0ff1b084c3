// The loops of convolution.h for avx512; its compiler flags stand in fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/mixing/convolution_rows.h"

namespace fovea::kernels {

template <>
const ConvolutionTable<float>& convolution_avx512<float>() {
  return kConvolutionTable<float>;
}
template <>
const ConvolutionTable<double>& convolution_avx512<double>() {
  return kConvolutionTable<double>;
}

}  // namespace fovea::kernels
