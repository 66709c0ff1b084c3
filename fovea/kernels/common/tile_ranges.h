// Tile ranges: the tiles of keys that a block of queries visits, and whether they need the
// element-wise mask.
//
// Built from a MaskRule and the places of the tokens; kernels and sparse references visit these
// tiles only, so masked-out tiles cost nothing. `full` ranges hold allowed pairs only, `partial`
// ones need `allowed()`; a pair outside every range is never allowed.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "fovea/kernels/common/mask_rule.h"
#include "fovea/kernels/common/plan_memory.h"

namespace fovea {

/// Neighbouring tiles of one kind.
struct TileRange {
  /// `compared`: memberships alone decide (VisitRule::members), places are seen.
  enum class Kind : uint8_t { full, partial, compared };
  int64_t key_begin = 0;  // inclusive
  int64_t key_end = 0;    // exclusive
  Kind kind = Kind::partial;
};

/// The ranges of all query blocks of one sequence, in one array.
struct TileRanges {
  int64_t query_block = 0;  ///< queries per block (the last may be shorter)
  std::span<const int64_t>
      block_begin;  ///< ranges of block b: [block_begin[b], block_begin[b + 1])
  /// Ascending, disjoint inside a block; neighbours of equal kind are merged.
  std::span<const TileRange> ranges;

  std::span<const TileRange> of_block(int64_t b) const {
    return ranges.subspan(block_begin[b], block_begin[b + 1] - block_begin[b]);
  }
  int64_t blocks() const { return static_cast<int64_t>(block_begin.size()) - 1; }
  template <class F>
  void each_array(const F& f) {
    f(block_begin), f(ranges);
  }
};

/// Builds the list for queries and keys at the given places (each ordered as in the sequence). Time
/// O(tiles), except that tiles whose rule has no closed form are scanned. `key_tile` is
/// the number of keys of a tile. The arrays are kept in `memory`.
TileRanges build_tile_ranges(const MaskRule& rule, std::span<const TokenPlace> queries,
                             std::span<const TokenPlace> keys, int64_t query_block,
                             int64_t key_tile, PlanMemory& memory);

}  // namespace fovea
