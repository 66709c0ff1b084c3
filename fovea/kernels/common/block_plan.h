// Plans of given block pairs: a query sees what is not later in the blocks that its own is paired
// with. The plan is one of lists (listed_plan.h), a list a block of a document.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fovea/kernels/common/grouped_plan.h"

namespace fovea {

/// Blocks of `size` positions of a document; `pairs`: query block, key block, query block, ...
struct BlockRule {
  int64_t size = 0;
  std::span<const int64_t> pairs;
};

/// Key blocks that every query block sees, ascending, without later ones.
std::vector<std::vector<int64_t>> seen_blocks(const BlockRule& rule);

/// The plan of one sequence, of which the last `queries` tokens are queries. ShapeError where
/// documents are no runs or positions do not ascend.
GroupedPlan make_block_plan(const BlockRule& rule, std::span<const TokenPlace> places,
                            int64_t queries, const TileSizes& tiles);

}  // namespace fovea
