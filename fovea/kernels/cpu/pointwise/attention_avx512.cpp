// The attention kernels for avx512 and float; compiler flags: fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/pointwise/attention_rows.h"

namespace fovea::kernels {

template <>
const AttentionTable<float>& attention_avx512<float>() {
  static const AttentionTable<float> table =
      table_of<float, Single>("avx512", gated_avx512<float>());
  return table;
}

}  // namespace fovea::kernels
