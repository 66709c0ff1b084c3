// The kernels with matrix tiles, their instructions emulated by loops (attention_tiles.h),
// and those for pairs of bfloat16 by others (attention_product.h); compiler flags stand in
// tests/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/pointwise/attention_table.h"

#if defined(FOVEA_TILES)
#include "fovea/kernels/cpu/pointwise/attention_gated_rows.h"
#include "fovea/kernels/cpu/pointwise/attention_rows.h"
#endif

namespace fovea::kernels {

// Null where this is not compiled for x86.
const AttentionTable<BFloat16>* emulated_tiles();

const AttentionTable<BFloat16>* emulated_tiles() {
#if defined(FOVEA_TILES)
  static const AttentionTable<BFloat16> table =
      attention_table_of<BFloat16, TilePair>("emulated tiles", gated_passes<BFloat16, TilePair>());
  return &table;
#else
  return nullptr;
#endif
}

}  // namespace fovea::kernels
