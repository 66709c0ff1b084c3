// The attention kernels for avx512_bf16 and BFloat16; compiler flags: fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/pointwise/attention_rows.h"

namespace fovea::kernels {

const AttentionTable<BFloat16>& attention_avx512_bf16() {
  static const AttentionTable<BFloat16> table =
      table_of<BFloat16, Pair>("avx512_bf16", gated_avx512_bf16());
  return table;
}

}  // namespace fovea::kernels
