// How many pairs hard Focus keeps, counted without looking at pairs (spec 9.9, 11.4).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "fovea/kernels/common/mask_rule.h"

namespace fovea {

/// Pairs of a query and a key of its document that is not later.
struct PairCount {
  int64_t pairs = 0;
  int64_t distant = 0;         ///< i - j >= window, and j no sink
  int64_t distant_shared = 0;  ///< of these, the ones that share a group

  PairCount& operator+=(const PairCount& other);
};

/// Counts the pairs of one sequence, whose tokens may be in any order. Every query meets counts of
/// the sets of groups before it, one number a set. Where there are many sets of few groups, it
/// meets one number for each subset of its own set. Time and memory are O(tokens) for a given
/// number of sets, or of groups a token.
PairCount count_pairs(int64_t window, int64_t sinks, std::span<const TokenPlace> places,
                      std::span<const uint64_t> members);

}  // namespace fovea
