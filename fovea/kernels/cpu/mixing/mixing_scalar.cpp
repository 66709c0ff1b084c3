// The mixing kernels for scalar; compiler flags: fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/mixing/mixing_forward.h"

namespace fovea::kernels {

template <>
const MixingTable<float>& mixing_scalar<float>() {
  static const MixingTable<float> table =
      mixing_table_of<float, Single>("scalar", mixing_gradient_scalar<float>());
  return table;
}
template <>
const MixingTable<BFloat16>& mixing_scalar<BFloat16>() {
  static const MixingTable<BFloat16> table =
      mixing_table_of<BFloat16, Single>("scalar", mixing_gradient_scalar<BFloat16>());
  return table;
}

}  // namespace fovea::kernels
