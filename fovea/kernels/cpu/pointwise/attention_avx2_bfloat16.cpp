// The attention kernels for avx2 and BFloat16; compiler flags: fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/pointwise/attention_rows.h"

namespace fovea::kernels {

template <>
const AttentionTable<BFloat16>& attention_avx2<BFloat16>() {
  static const AttentionTable<BFloat16> table =
      table_of<BFloat16, Single>("avx2", gated_avx2<BFloat16>());
  return table;
}

}  // namespace fovea::kernels
