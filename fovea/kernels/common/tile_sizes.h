// Tile sizes: values that a backend gives to the plans of visits.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fovea {

/// In tokens.
struct TileSizes {
  int64_t queries = 0;  ///< a block of queries, which stays near while keys stream past
  int64_t keys = 0;     ///< a block of keys, in the backward pass
  int64_t tile = 0;     ///< keys, or queries, that are visited or left out together; divides both

  bool operator==(const TileSizes&) const = default;
};

}  // namespace fovea
