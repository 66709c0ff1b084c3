// Visits: everything that attention kernels need to know about one sequence's mask, derived once.
//
// Tile ranges in both directions say which tiles are visited. For partial tiles, the relation
// `allowed()` (mask_rule.h) is rewritten as comparisons of a few integers per token. Kernels
// evaluate these in vectors, and memory stays linear in the sequence. Sources: spec 0.1, 4.7, 7.5
// and 9.10.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "fovea/kernels/common/mask_rule.h"
#include "fovea/kernels/common/tile_ranges.h"
#include "fovea/kernels/common/tile_sizes.h"

namespace fovea {

/// Plain arrays, padded to whole blocks of keys; padding matches nothing.
struct TokenColumns {
  std::span<const int32_t> position, document;
  std::span<const int32_t> pattern_id;  ///< strided: position mod stride; fixed: its block
  std::span<const int32_t> open;        ///< keys: kOpenBefore | kOpenAlways

  template <class F>
  void each_array(const F& f) {
    f(position), f(document), f(pattern_id), f(open);
  }

  static constexpr int32_t kOpenBefore = 1;  ///< a sink: seen from its own position on
  static constexpr int32_t kOpenAlways = 2;  ///< a summary position of `fixed`
  static constexpr int32_t kOpenToAll = 4;   ///< meets every set of groups
};

/// The condition that memberships in groups add to the rule (grouped_plan.h).
enum class MemberRule : uint8_t {
  ignored,
  meet_or_near,  ///< and (the tokens share a group, or i - j < near)
  apart,         ///< and the memberships are disjoint
};

/// How the columns combine: seen = same document, and (causal) distance i - j >= 0, and, if
/// `limited`: |distance| < reach, or pattern ids are equal (if `patterned`), or the key is open.
struct VisitRule {
  bool causal = true, limited = false, patterned = false;
  int32_t reach = 0;
  bool opens = false;  ///< some keys may be open
  MemberRule members = MemberRule::ignored;
  int32_t near = 0;  ///< of `meet_or_near`
};

/// A packed plan (plan_memory.h).
struct Visits {
  int64_t queries = 0, keys = 0;
  /// Queries, and keys, stand document by document, positions ascending in each: the ends of a tile
  /// tell whether all of it is seen, or nothing.
  bool ordered = false;
  VisitRule rule;
  TokenColumns query, key;
  TileSizes sizes;
  TileRanges by_query;  ///< of blocks of queries: ranges of keys
  TileRanges by_key;    ///< of blocks of keys: ranges of queries (key_begin, key_end are queries)
  PlanMemory memory;    ///< packed

  template <class F>
  void each_array(const F& f) {
    query.each_array(f), key.each_array(f);
    by_query.each_array(f), by_key.each_array(f);
  }
};

/// Keys [begin, end), of which key j stands at position j + shift.
struct KeyRange {
  int64_t begin = 0, end = 0, shift = 0;
};

/// Keys that one query sees where keys are not packed (decoding), in at most two runs: the near
/// ones and, with sinks before a window, far ones.
struct RowVisits {
  int64_t position = 0;
  KeyRange near, far;
};

/// The rule's columns, one by one: how a mask rule becomes comparisons.
VisitRule visit_rule(const MaskRule& rule);
int32_t visit_pattern_id(const MaskRule& rule, int64_t position);
int32_t visit_open(const MaskRule& rule, int64_t position);

/// Derives the visits of queries and keys at the given places. Time O(tiles), memory O(tokens +
/// ranges). ShapeError where a position does not fit 31 bits.
Visits make_visits(const MaskRule& rule, std::span<const TokenPlace> queries,
                   std::span<const TokenPlace> keys, const TileSizes& sizes);

/// Keys that a query at `position` sees of one document, whose keys stand in `runs` of ascending
/// positions. Nothing where the query sees more than two ranges, or where the rule is strided or
/// fixed.
std::optional<RowVisits> row_visits(const MaskRule& rule, int64_t position,
                                    std::span<const KeyRange> runs);

}  // namespace fovea
