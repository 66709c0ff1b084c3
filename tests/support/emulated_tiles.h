// Kernels with emulated matrix tiles (attention_tiles.h), where this machine can run the code
// around the tiles.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "fovea/kernels/common/isa.h"
#include "fovea/kernels/cpu/mixing/mixing_table.h"

namespace fovea {
namespace kernels {
const MixingTable<BFloat16>* emulated_mixing_tiles();
}

namespace testing {

/// Null without AVX-512.
inline const kernels::MixingTable<BFloat16>* mixing_tiles() {
  if (found_isa() < Isa::avx512) return nullptr;
  EXPECT_NE(kernels::emulated_mixing_tiles(), nullptr) << "compiled without its options";
  return kernels::emulated_mixing_tiles();
}

}  // namespace testing
}  // namespace fovea
