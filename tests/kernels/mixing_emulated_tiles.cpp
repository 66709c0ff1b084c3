// The mixing kernels with matrix tiles, their instructions emulated as those of
// attention_emulated_tiles.cpp are.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/mixing/mixing_table.h"

#if defined(FOVEA_TILES)
#define FOVEA_ROW_TILES 1
#include "fovea/kernels/cpu/mixing/mixing_backward.h"
#include "fovea/kernels/cpu/mixing/mixing_rows.h"
#endif

namespace fovea::kernels {

// Null where this is not compiled for x86.
const MixingTable<BFloat16>* emulated_mixing_tiles();

const MixingTable<BFloat16>* emulated_mixing_tiles() {
#if defined(FOVEA_TILES)
  static const MixingTable<BFloat16> table = mixing_table_of<BFloat16, TilePair>(
      "emulated tiles",
      {mixing_gradient_floats<BFloat16, TilePair>, mixing_gradient_strips<BFloat16, TilePair>});
  return &table;
#else
  return nullptr;
#endif
}

}  // namespace fovea::kernels
