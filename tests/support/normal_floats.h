// Normal numbers for tests of kernels, which know no tensors.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "fovea/base/rng.h"

namespace fovea::testing {

/// `count` numbers of mean 0 and variance 1, the same for the same seed.
inline std::vector<float> normal_floats(int64_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& n : x) n = static_cast<float>(rng.normal());
  return x;
}

}  // namespace fovea::testing
