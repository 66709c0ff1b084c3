// Plans of hard Focus: which tiles of pairs are visited when distant tokens attend only if they
// share a group (spec 11.4, 11.5, U-9, U-11).
//
//   seen(i, j) = allowed(i, j) and (i - j < window, or j < sinks, or the tokens share a group)
//
// Four plans for the same relation, all in O(tokens) memory:
//   block_sparse  tokens in their order; a tile is skipped if its memberships are disjoint and no
//                 pair is near; where it is not, memberships are compared inside the tile
//   classes       far pairs (i - j >= window) among tokens sorted by their exact set of groups: the
//                 queries of one set visit the keys of all sets that meet it, no test inside tiles;
//                 then the near pairs (i - j < window) in the tokens' order
//   groups        far pairs group by group; a pair counts in its lowest common group alone; near
//                 pairs as above
//   dense         any two sets of the batch meet: plain attention
// Sinks count as members of every group. A far query stands `window` before its own position, so a
// far pair needs only the test "not later", and the parts are disjoint.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/kernels/common/int_rows.h"
#include "fovea/kernels/common/mask_rule.h"
#include "fovea/kernels/common/plan_memory.h"
#include "fovea/kernels/common/visits.h"

namespace fovea {

/// `lists`: of listed_plan.h alone.
enum class GroupedKind { dense, block_sparse, classes, groups, lists };
std::span<const std::string_view> enum_names(GroupedKind);

struct GroupedRule {
  MaskRule mask;
  int64_t groups = 8;  ///< K, at most 64
  int64_t window = 128;
  int64_t sinks = 0;
};

/// One sequence: keys in order (documents are runs, positions ascend in each) with the bits of
/// their groups; the queries are the last `queries` of them.
struct GroupedTokens {
  std::span<const TokenPlace> places;
  std::span<const uint64_t> members;
  int64_t queries = 0;
};

/// Tokens in an order of their own, whole tiles a list: slots. Padding has token -1.
struct SlotColumns {
  std::span<const int32_t> token;
  TokenColumns places;
  std::span<const int32_t> low, high;  ///< memberships, where the tiles compare them

  template <class F>
  void each_array(const F& f) {
    places.each_array(f);
    f(token), f(low), f(high);
  }
};

/// The slots of one class or group (or of the sinks).
struct SlotList {
  uint64_t members = 0;
  int64_t key_begin = 0, keys = 0, query_begin = 0, queries = 0;
  int64_t component = 0;  ///< lists of different components never meet
};

/// Up to a block of queries of one list.
struct SlotBlock {
  int64_t list = 0, begin = 0, rows = 0;
};

/// The far pairs of `classes` and `groups`, and all of `lists`.
struct FarPairs {
  VisitRule rule;
  SlotColumns key, query;  ///< positions of queries are less by the window (lists: ranks, maybe)
  std::span<const SlotList> lists;
  IntRows visits, visited_by;         ///< lists whose keys a list's queries visit, and the converse
  std::span<const SlotBlock> blocks;  ///< list by list, late queries first
  IntRows query_slots;                ///< of query i
  int64_t components = 0;

  template <class F>
  void each_array(const F& f) {
    key.each_array(f), query.each_array(f);
    visits.each_array(f), visited_by.each_array(f), query_slots.each_array(f);
    f(lists), f(blocks);
  }
};

/// A packed plan (plan_memory.h).
struct GroupedPlan {
  GroupedKind kind = GroupedKind::dense;
  std::string reason;
  int64_t queries = 0, keys = 0;
  TileSizes sizes;
  GroupedRule rule;
  VisitRule near;    ///< of the pass in the tokens' order: near pairs, or (block_sparse) all
  TokenColumns key;  ///< pattern_id and open are empty where the rule does not read them
  /// Memberships of keys, sinks in every group, where the rule compares them; high if K > 32.
  std::span<const int32_t> low, high;
  std::span<const int32_t> documents;  ///< where they begin, then the number of keys
  /// By key: the first key that is near it, the first later one that it is far from.
  std::span<const int32_t> near_begin, far_from;
  /// By tiles of keys, and of queries: groups that some and that all of them are in.
  std::span<const uint64_t> key_any, key_all, query_any, query_all;
  FarPairs far;
  PlanMemory memory;

  bool has_far() const {
    return kind == GroupedKind::classes || kind == GroupedKind::groups ||
           kind == GroupedKind::lists;
  }
  bool has_near() const { return kind != GroupedKind::lists; }
  int64_t first_query() const { return keys - queries; }
  /// The first key of a key's document, and the one behind its last.
  int64_t document_begin(int64_t n) const { return documents[key.document[n]]; }
  int64_t document_end(int64_t n) const { return documents[key.document[n] + 1]; }
  template <class F>
  void each_array(const F& f) {
    key.each_array(f), far.each_array(f);
    f(low), f(high), f(documents), f(near_begin), f(far_from);
    f(key_any), f(key_all), f(query_any), f(query_all);
  }
};

/// Checks the tokens, counts tiles and takes the cheapest plan, or builds `wanted`. Time and
/// memory O(tokens). ConfigError: more than 64 groups, or a plan that the mask or the memberships
/// exclude; ShapeError: sizes, positions or documents out of order, memberships out of range.
GroupedPlan make_grouped_plan(const GroupedRule& rule, const GroupedTokens& tokens,
                              const TileSizes& sizes,
                              std::optional<GroupedKind> wanted = std::nullopt);

/// Why there are no plans for a mask and tokens at these places.
std::optional<std::string> why_not_grouped_plans(const GroupedRule& rule,
                                                 std::span<const TokenPlace> places);

/// Slots of every key.
IntRowList key_slots_of(const GroupedPlan& plan);

/// Tiles of keys that blocks of queries visit, in all passes of a plan, for one head.
int64_t visited_tiles(const GroupedPlan& plan);

/// Tile ranges of keys of query rows [begin, begin + rows) in the pass in the tokens' order.
void near_tile_ranges(const GroupedPlan& plan, int64_t begin, int64_t rows,
                      std::vector<TileRange>& out);
/// Tile ranges of queries of the keys [begin, end) there.
void near_query_tile_ranges(const GroupedPlan& plan, int64_t begin, int64_t end,
                            std::vector<TileRange>& out);
/// Tile ranges of key slots of a far block, and of query slots of the key slots [begin, end) of a
/// list.
void far_tile_ranges(const GroupedPlan& plan, const SlotBlock& block, std::vector<TileRange>& out);
void far_query_tile_ranges(const GroupedPlan& plan, int64_t list, int64_t begin, int64_t end,
                           std::vector<TileRange>& out);

}  // namespace fovea
