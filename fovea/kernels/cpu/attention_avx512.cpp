// The attention kernels for avx512; its compiler flags stand in fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/attention_rows.h"

namespace fovea::kernels {

template <>
const AttentionTable<float>& attention_avx512<float>() {
  static constexpr AttentionTable<float> table = table_of<float, Single>("avx512");
  return table;
}
template <>
const AttentionTable<BFloat16>& attention_avx512<BFloat16>() {
  static constexpr AttentionTable<BFloat16> table = table_of<BFloat16, Single>("avx512");
  return table;
}

}  // namespace fovea::kernels
