// The attention kernels with a gate for avx2 and float; compiler flags: fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/pointwise/attention_gated_rows.h"

namespace fovea::kernels {

template <>
GatedPasses<float> gated_avx2<float>() {
  return gated_passes<float, Single>();
}

}  // namespace fovea::kernels
