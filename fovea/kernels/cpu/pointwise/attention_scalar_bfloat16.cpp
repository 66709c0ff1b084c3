// The attention kernels for scalar and BFloat16; compiler flags: fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/pointwise/attention_rows.h"

namespace fovea::kernels {

template <>
const AttentionTable<BFloat16>& attention_scalar<BFloat16>() {
  static const AttentionTable<BFloat16> table =
      table_of<BFloat16, Single>("scalar", gated_scalar<BFloat16>());
  return table;
}

}  // namespace fovea::kernels
