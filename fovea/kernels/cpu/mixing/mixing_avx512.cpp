// The mixing kernels for avx512; compiler flags: fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/mixing/mixing_forward.h"

namespace fovea::kernels {

template <>
const MixingTable<float>& mixing_avx512<float>() {
  static const MixingTable<float> table =
      mixing_table_of<float, Single>("avx512", mixing_gradient_avx512<float>());
  return table;
}
template <>
const MixingTable<BFloat16>& mixing_avx512<BFloat16>() {
  static const MixingTable<BFloat16> table =
      mixing_table_of<BFloat16, Single>("avx512", mixing_gradient_avx512<BFloat16>());
  return table;
}

}  // namespace fovea::kernels
