// The attention kernels for amx and BFloat16; compiler flags: fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/pointwise/attention_rows.h"

namespace fovea::kernels {

const AttentionTable<BFloat16>& attention_amx() {
  static const AttentionTable<BFloat16> table = table_of<BFloat16, TilePair>("amx", gated_amx());
  return table;
}

}  // namespace fovea::kernels
