// The attention kernels for scalar and float; compiler flags: fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/pointwise/attention_rows.h"

namespace fovea::kernels {

template <>
const AttentionTable<float>& attention_scalar<float>() {
  static const AttentionTable<float> table =
      table_of<float, Single>("scalar", gated_scalar<float>());
  return table;
}

}  // namespace fovea::kernels
