// The mixing kernels for avx512_bf16: products of pairs; compiler flags: fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/mixing/mixing_forward.h"

namespace fovea::kernels {

const MixingTable<BFloat16>& mixing_avx512_bf16() {
  static const MixingTable<BFloat16> table =
      mixing_table_of<BFloat16, Pair>("avx512_bf16", mixing_gradient_avx512_bf16());
  return table;
}

}  // namespace fovea::kernels
