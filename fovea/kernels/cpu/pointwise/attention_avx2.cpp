// The attention kernels for avx2 and float; compiler flags: fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/pointwise/attention_rows.h"

namespace fovea::kernels {

template <>
const AttentionTable<float>& attention_avx2<float>() {
  static const AttentionTable<float> table = table_of<float, Single>("avx2", gated_avx2<float>());
  return table;
}

}  // namespace fovea::kernels
