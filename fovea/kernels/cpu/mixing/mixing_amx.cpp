// The mixing kernels for amx: products and convolutions by matrix tiles; compiler flags:
// fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#define FOVEA_ROW_TILES 1  // a strip is three

#include "fovea/kernels/cpu/mixing/mixing_forward.h"

namespace fovea::kernels {

const MixingTable<BFloat16>& mixing_amx() {
  static const MixingTable<BFloat16> table =
      mixing_table_of<BFloat16, TilePair>("amx", mixing_gradient_amx());
  return table;
}

}  // namespace fovea::kernels
