// Counter-based dropout: whether an entry is kept is a pure function of (seed, layer, head, i, j),
// so the reference, fused kernels and any tiling drop the same entries.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/base/rng.h"

namespace fovea {

/// Identity of one attention matrix: the seed of the sequence (already mixed with its batch row),
/// layer and head.
struct DropoutStream {
  uint64_t seed = 0;
  uint32_t layer = 0;
  uint32_t head = 0;
};

/// True if entry (i, j) survives dropout with probability 1 - p. Four neighbouring keys share one
/// Philox block.
constexpr bool dropout_keeps(const DropoutStream& stream, float p, int64_t i, int64_t j) {
  const PhiloxBlock block =
      philox(stream.seed, (static_cast<uint64_t>(i) << 32) | static_cast<uint64_t>(j >> 2),
             (static_cast<uint64_t>(stream.layer) << 32) | stream.head);
  return uniform01(block[static_cast<size_t>(j & 3)]) >= p;
}

}  // namespace fovea
