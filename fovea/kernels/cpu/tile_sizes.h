// The tile sizes of the CPU's kernels.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/common/tile_sizes.h"

namespace fovea::kernels {

/// A block of queries stays in the first-level cache; a block of keys makes the sums over keys four
/// panels deep.
inline constexpr int64_t kQueryBlock = 64, kKeyBlock = 128, kVisitTile = 32;

inline constexpr TileSizes kTileSizes{
    .queries = kQueryBlock, .keys = kKeyBlock, .tile = kVisitTile};

}  // namespace fovea::kernels
