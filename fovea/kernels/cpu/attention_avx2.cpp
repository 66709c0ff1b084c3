// The attention kernels for avx2; its compiler flags stand in fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/attention_rows.h"

namespace fovea::kernels {

template <>
const AttentionTable<float>& attention_avx2<float>() {
  static constexpr AttentionTable<float> table = table_of<float, Single>("avx2");
  return table;
}
template <>
const AttentionTable<BFloat16>& attention_avx2<BFloat16>() {
  static constexpr AttentionTable<BFloat16> table = table_of<BFloat16, Single>("avx2");
  return table;
}

}  // namespace fovea::kernels
