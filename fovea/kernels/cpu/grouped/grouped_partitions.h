// Partitions of the backward pass of grouped attention (internal to kernels/cpu).
//
// A partition is a set of key blocks with dQ sums of its own for the queries that they reach.
// Partitions depend on the plan alone, so results do not depend on threads.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "fovea/kernels/common/grouped_plan.h"
#include "fovea/kernels/cpu/tile_sizes.h"

namespace fovea::kernels {

/// Keys [begin, end) of the tokens' order or of one list's slots.
struct KeyBlock {
  int64_t list = 0, begin = 0, end = 0;
};

/// Key blocks, ascending, and the rows of queries (far: query slots) that they reach.
struct KeyPartition {
  bool far = false;
  std::vector<KeyBlock> blocks;
  int64_t row_begin = 0, row_end = 0;  ///< whole kVisitTile tiles

  /// Far: the component whose lists, keys and queries, this partition alone reads, in slots
  /// [key_begin, key_end) and its rows; -1 if it reads others, or others read these, too.
  int64_t component = -1, key_begin = 0, key_end = 0;
  /// Near, after a far pass: the rows that no other near partition reaches.
  int64_t alone_begin = 0, alone_end = 0;

  int64_t rows() const { return row_end - row_begin; }
};

/// Far partitions, the longest blocks, come first. A plan with a far pass has near partitions of
/// whole stretches of the text; without one its tiles are dealt to partitions that all reach all
/// rows.
std::vector<KeyPartition> key_partitions(const GroupedPlan& plan);

}  // namespace fovea::kernels
