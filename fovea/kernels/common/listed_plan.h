// Plans of given lists: queries see the keys of the lists that are paired with their own, and no
// others.
//
// Hard Focus has groups of tokens; lists serve other rules on sets of tokens: clusters (routing,
// spec 4.3) and block-sparse rules. The plan is the far half of a grouped plan (grouped_plan.h) and
// runs on the same kernels; there is no near half.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "fovea/kernels/common/grouped_plan.h"

namespace fovea {

/// One sequence: keys in order, of which the last are the queries. Lists are numbered from 0 to
/// visits' rows; -1: in no list.
struct ListedTokens {
  std::span<const TokenPlace> places;             ///< of keys; documents are runs, positions ascend
  std::span<const int32_t> query_list, key_list;  /// of the queries, of the keys
  IntRows visits;  ///< lists whose keys the queries of a list see, ascending
  /// Above 0: only the last so many keys of the list; a list visits itself alone then.
  int64_t keep = 0;
};

/// Seen: same document, not later, in a visited list (and among its last `keep`). Time and memory
/// O(tokens + visits). ShapeError: sizes, order of places, list numbers.
GroupedPlan make_listed_plan(const ListedTokens& tokens, const TileSizes& sizes);

}  // namespace fovea
