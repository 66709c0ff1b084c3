// Strip lists: which key ranges a block of queries visits, and whether each needs the element-wise
// mask.
//
// Built from a MaskRule and the places of the tokens; kernels and sparse references visit strips
// only, so masked-out tiles cost nothing. `full` strips hold allowed pairs only, `partial` ones
// need `allowed()`; a pair outside every strip is never allowed.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fovea/kernels/common/mask_rule.h"

namespace fovea {

struct Strip {
  /// `compared`: memberships alone decide (VisitRule::members), places are seen.
  enum class Kind : uint8_t { full, partial, compared };
  int64_t key_begin = 0;  // inclusive
  int64_t key_end = 0;    // exclusive
  Kind kind = Kind::partial;
};

/// Strips of all query blocks of one sequence, in one array.
struct StripList {
  int64_t query_block = 0;           ///< queries per block (the last may be shorter)
  std::vector<int64_t> block_begin;  ///< strips of block b: [block_begin[b], block_begin[b + 1])
  std::vector<Strip>
      strips;  ///< ascending, disjoint inside a block; neighbours of equal kind are merged

  std::span<const Strip> of_block(int64_t b) const {
    return std::span(strips).subspan(block_begin[b], block_begin[b + 1] - block_begin[b]);
  }
  int64_t blocks() const { return static_cast<int64_t>(block_begin.size()) - 1; }
};

/// Builds the list for queries and keys at the given places (each ordered as in the sequence). Time
/// O(tiles), except that tiles whose rule has no closed form are scanned. `key_tile` is the
/// granularity of strips.
StripList build_strips(const MaskRule& rule, std::span<const TokenPlace> queries,
                       std::span<const TokenPlace> keys, int64_t query_block, int64_t key_tile);

}  // namespace fovea
