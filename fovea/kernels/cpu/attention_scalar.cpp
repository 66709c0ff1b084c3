// The attention kernels for scalar; its compiler flags stand in fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/attention_rows.h"

namespace fovea::kernels {

template <>
const AttentionTable<float>& attention_scalar<float>() {
  static constexpr AttentionTable<float> table = table_of<float, Single>("scalar");
  return table;
}
template <>
const AttentionTable<BFloat16>& attention_scalar<BFloat16>() {
  static constexpr AttentionTable<BFloat16> table = table_of<BFloat16, Single>("scalar");
  return table;
}

}  // namespace fovea::kernels
