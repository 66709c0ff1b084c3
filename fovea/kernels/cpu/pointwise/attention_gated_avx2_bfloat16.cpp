// The attention kernels with a gate for avx2 and BFloat16; compiler flags: fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/pointwise/attention_gated_rows.h"

namespace fovea::kernels {

template <>
GatedPasses<BFloat16> gated_avx2<BFloat16>() {
  return gated_passes<BFloat16, Single>();
}

}  // namespace fovea::kernels
