// The row loops for scalar; its compiler flags stand in fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/products/elementwise_rows.h"

namespace fovea::kernels {

template <>
const ElementwiseTable<float>& elementwise_scalar<float>() {
  return kTable<float>;
}
template <>
const ElementwiseTable<BFloat16>& elementwise_scalar<BFloat16>() {
  return kTable<BFloat16>;
}

}  // namespace fovea::kernels
