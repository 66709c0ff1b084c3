// Tile ranges of a grouped plan, derived block by block when they are needed.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "fovea/kernels/common/grouped_plan.h"

namespace fovea {
namespace {

constexpr int64_t round_down(int64_t n, int64_t tile) { return n / tile * tile; }
constexpr int64_t round_up(int64_t n, int64_t tile) { return round_down(n + tile - 1, tile); }

void append(std::vector<TileRange>& out, int64_t begin, int64_t end, TileRange::Kind kind) {
  if (begin >= end) return;
  if (!out.empty() && out.back().key_end == begin && out.back().kind == kind) {
    out.back().key_end = end;
  } else {
    out.push_back({.key_begin = begin, .key_end = end, .kind = kind});
  }
}

// [some_begin, some_end) in whole tiles, of which those inside [all_begin, all_end) are full;
// `size` rows exist.
void append_range(std::vector<TileRange>& out, int64_t tile, int64_t offset, int64_t size,
                  int64_t some_begin, int64_t some_end, int64_t all_begin, int64_t all_end) {
  if (some_begin >= some_end) return;
  const int64_t begin = round_down(some_begin, tile),
                end = std::min(round_up(some_end, tile), size);
  int64_t full_begin = round_up(std::max(all_begin, begin), tile),
          full_end = round_down(all_end, tile);
  if (full_begin >= full_end) full_begin = full_end = end;
  append(out, offset + begin, offset + full_begin, TileRange::Kind::partial);
  append(out, offset + full_begin, offset + full_end, TileRange::Kind::full);
  append(out, offset + full_end, offset + end, TileRange::Kind::partial);
}

// What tiles of the tokens' order hold, in block_sparse and dense.
class Tiles {
 public:
  explicit Tiles(const GroupedPlan& plan)
      : p_(plan),
        window_(plan.rule.mask.window),
        full_(plan.rule.mask.sparsity == MaskRule::Sparsity::full),
        dense_(plan.kind == GroupedKind::dense) {}

  // Tokens [first, last] as queries, [key, key_last] as keys.
  void add(int64_t first, int64_t last, int64_t key, int64_t key_last, bool meet_any, bool meet_all,
           int64_t at, int64_t end, std::vector<TileRange>& out) const {
    const auto& position = p_.key.position;
    const bool one = p_.document_begin(last) <= std::min(key, first) &&
                     p_.document_end(key) > std::max(key_last, last);
    const bool near_some = key_last >= p_.near_begin[first];
    if (key > last || key_last < p_.document_begin(first)) return;
    if (!dense_ && !near_some && !meet_any) return;
    bool inside = true;
    if (window_ > 0 || !full_) {
      const int64_t nearest = position[first] - position[key_last];
      const bool open = position[key] < p_.rule.mask.sinks;
      if (full_ && one && nearest >= window_ && !open) return;
      inside = full_ && position[last] - position[key] < window_;
    }
    const bool near_all = key >= p_.near_begin[last];
    const bool all =
        full_ && one && inside && key_last <= first && (dense_ || meet_all || near_all);
    const bool placed = full_ && one && inside && key_last <= first && last < p_.keys;
    append(out, at, end,
           all                                         ? TileRange::Kind::full
           : placed && key_last < p_.near_begin[first] ? TileRange::Kind::compared
                                                       : TileRange::Kind::partial);
  }

 private:
  const GroupedPlan& p_;
  const int64_t window_;
  const bool full_, dense_;
};

struct Sets {
  uint64_t any = 0, all = ~uint64_t{0};
};

Sets sets_of(std::span<const uint64_t> any, std::span<const uint64_t> all, int64_t begin,
             int64_t end, int64_t tile) {
  Sets out;
  for (int64_t n = begin / tile; n * tile < end; ++n) {
    out.any |= any[n];
    out.all &= all[n];
  }
  return out;
}

// Sinks (which alone are in every group) meet a token without groups, too.
bool may_meet(uint64_t query, uint64_t key) { return (query & key) != 0 || key == ~uint64_t{0}; }

// Slots [first, second) of a list.
using Slots = std::pair<int64_t, int64_t>;

// The slots whose tokens are in [begin, end).
Slots slots_between(std::span<const int32_t> tokens, int64_t begin, int64_t end) {
  const auto at = [&](int64_t token) {
    return std::ranges::lower_bound(tokens, static_cast<int32_t>(token)) - tokens.begin();
  };
  return {at(begin), at(std::max(begin, end))};
}

std::span<const int32_t> keys_of(const FarPairs& far, const SlotList& list) {
  return far.key.token.subspan(list.key_begin, list.keys);
}
std::span<const int32_t> queries_of(const FarPairs& far, const SlotList& list) {
  return far.query.token.subspan(list.query_begin, list.queries);
}

void append_keys(std::vector<TileRange>& out, int64_t tile, const SlotList& list, Slots some,
                 Slots all) {
  append_range(out, tile, list.key_begin, round_up(list.keys, tile), some.first, some.second,
               all.first, all.second);
}
void append_queries(std::vector<TileRange>& out, int64_t tile, const SlotList& list, Slots some,
                    Slots all) {
  append_range(out, tile, list.query_begin, round_up(list.queries, tile), some.first, some.second,
               all.first, all.second);
}

// Key slots of a block of a listed plan.
void listed_tile_ranges(const GroupedPlan& plan, const SlotBlock& block,
                        std::vector<TileRange>& out) {
  const FarPairs& far = plan.far;
  const int32_t first = far.query.token[block.begin];
  const int32_t last = far.query.token[block.begin + block.rows - 1];
  const int64_t begin = plan.document_begin(first);
  const bool one = begin == plan.document_begin(last);
  for (const int32_t s : far.visits.of(block.list)) {
    const SlotList& list = far.lists[s];
    const std::span tokens = keys_of(far, list);
    Slots some = slots_between(tokens, begin, last + 1);
    const int64_t first_end = slots_between(tokens, begin, first + 1).second;
    Slots all{some.first, one ? first_end : 0};
    if (far.rule.limited) {
      some.first = std::max(some.first, first_end - far.rule.reach);
      all.first = std::max(some.first, some.second - far.rule.reach);
    }
    append_keys(out, plan.sizes.tile, list, some, all);
  }
}

// Query slots of key slots [begin, end) of a list of a listed plan.
void listed_query_tile_ranges(const GroupedPlan& plan, int64_t list, int64_t begin, int64_t end,
                              std::vector<TileRange>& out) {
  const FarPairs& far = plan.far;
  const int32_t first = far.key.token[begin], last = far.key.token[end - 1];
  const bool one = plan.document_begin(first) == plan.document_begin(last);
  for (const int32_t c : far.visited_by.of(list)) {
    const SlotList& visitor = far.lists[c];
    const std::span tokens = queries_of(far, visitor);
    const int32_t* const rank = far.query.places.position.data() + visitor.query_begin;
    // The first query of `key`'s document, from `slot` on, whose window has left it behind.
    const auto past = [&](int64_t slot, int64_t key) {
      const int64_t stop = slots_between(tokens, 0, plan.document_end(far.key.token[key])).second;
      const int64_t limit = int64_t{far.key.places.position[key]} + far.rule.reach;
      return std::lower_bound(rank + slot, rank + stop, limit) - rank;
    };
    Slots some = slots_between(tokens, first, plan.document_end(last)), all{0, 0};
    if (one) all = slots_between(tokens, last, plan.document_end(first));
    if (far.rule.limited) {
      all.second = one ? past(all.first, begin) : 0;
      some.second = past(slots_between(tokens, last, plan.document_end(last)).first, end - 1);
    }
    append_queries(out, plan.sizes.tile, visitor, some, all);
  }
}

bool compares(const GroupedPlan& plan, const SlotList& list) {
  return plan.far.rule.members != MemberRule::ignored && list.members != 1;
}

}  // namespace

void near_tile_ranges(const GroupedPlan& plan, int64_t begin, int64_t rows,
                      std::vector<TileRange>& out) {
  out.clear();
  if (!plan.has_near()) return;
  const int64_t first = plan.first_query() + begin, last = first + rows - 1;
  if (plan.has_far()) {
    const bool one = plan.document_begin(first) == plan.document_begin(last);
    append_range(out, plan.sizes.tile, 0, plan.keys, plan.near_begin[first], last + 1,
                 plan.near_begin[last], one ? first + 1 : 0);
    return;
  }
  const Tiles tiles(plan);
  const Sets query = sets_of(plan.query_any, plan.query_all, begin, begin + rows, plan.sizes.tile);
  const int64_t tile = plan.sizes.tile;
  for (int64_t key = round_down(plan.document_begin(first), tile); key <= last; key += tile) {
    const int64_t end = std::min(key + tile, plan.keys), n = key / tile;
    tiles.add(first, last, key, end - 1, may_meet(query.any, plan.key_any[n]),
              (query.all & plan.key_all[n]) != 0, key, end, out);
  }
}

void near_query_tile_ranges(const GroupedPlan& plan, int64_t begin, int64_t end,
                            std::vector<TileRange>& out) {
  out.clear();
  if (!plan.has_near()) return;
  const int64_t offset = plan.first_query();
  const int64_t from = std::max<int64_t>(begin - offset, 0);
  if (plan.has_far()) {
    append_range(out, plan.sizes.tile, 0, plan.queries, from, plan.far_from[end - 1] - offset,
                 end - 1 - offset, plan.far_from[begin] - offset);
    return;
  }
  const Tiles tiles(plan);
  const Sets key = sets_of(plan.key_any, plan.key_all, begin, end, plan.sizes.tile);
  const int64_t behind = plan.document_end(end - 1) - offset;
  const int64_t tile = plan.sizes.tile;
  for (int64_t query = round_down(from, tile); query < behind; query += tile) {
    const int64_t stop = std::min(query + tile, plan.queries), n = query / tile;
    tiles.add(query + offset, stop - 1 + offset, begin, end - 1,
              may_meet(plan.query_any[n], key.any), (key.all & plan.query_all[n]) != 0, query, stop,
              out);
  }
}

void far_tile_ranges(const GroupedPlan& plan, const SlotBlock& block, std::vector<TileRange>& out) {
  out.clear();
  if (plan.kind == GroupedKind::lists) return listed_tile_ranges(plan, block, out);
  const FarPairs& far = plan.far;
  const int32_t first = far.query.token[block.begin];
  const int32_t last = far.query.token[block.begin + block.rows - 1];
  const bool one = plan.document_begin(first) == plan.document_begin(last);
  int64_t begin = plan.document_begin(first);
  if (const MaskRule& mask = plan.rule.mask; mask.window > 0 && mask.sinks == 0) {
    const auto& position = plan.key.position;  // keys the mask's window still shows
    begin = std::partition_point(position.begin() + begin, position.begin() + first,
                                 [&](int32_t x) { return position[first] - x >= mask.window; }) -
            position.begin();
  }
  for (const int32_t s : far.visits.of(block.list)) {
    const SlotList& list = far.lists[s];
    const std::span tokens = keys_of(far, list);
    Slots all{0, 0};
    if (one && !far.rule.limited && !compares(plan, list))
      all = slots_between(tokens, plan.document_begin(last), plan.near_begin[first]);
    append_keys(out, plan.sizes.tile, list, slots_between(tokens, begin, plan.near_begin[last]),
                all);
  }
}

void far_query_tile_ranges(const GroupedPlan& plan, int64_t list, int64_t begin, int64_t end,
                           std::vector<TileRange>& out) {
  out.clear();
  if (plan.kind == GroupedKind::lists) return listed_query_tile_ranges(plan, list, begin, end, out);
  const FarPairs& far = plan.far;
  const int32_t first = far.key.token[begin], last = far.key.token[end - 1];
  const bool one = plan.document_begin(first) == plan.document_begin(last);
  for (const int32_t c : far.visited_by.of(list)) {
    const SlotList& visitor = far.lists[c];
    const std::span tokens = queries_of(far, visitor);
    Slots all{0, 0};
    if (one && !far.rule.limited && !compares(plan, far.lists[list]))
      all = slots_between(tokens, plan.far_from[last], plan.document_end(first));
    append_queries(out, plan.sizes.tile, visitor,
                   slots_between(tokens, plan.far_from[first], plan.document_end(last)), all);
  }
}

int64_t visited_tiles(const GroupedPlan& plan) {
  const int64_t rows = plan.sizes.queries, tile = plan.sizes.tile;
  int64_t tiles = 0;
  std::vector<TileRange> ranges;
  const auto add = [&] {
    for (const TileRange& range : ranges)
      tiles += (range.key_end - range.key_begin + tile - 1) / tile;
  };
  for (int64_t begin = 0; begin < plan.queries; begin += rows) {
    near_tile_ranges(plan, begin, std::min(rows, plan.queries - begin), ranges);
    add();
  }
  for (const SlotBlock& block : plan.far.blocks) {
    far_tile_ranges(plan, block, ranges);
    add();
  }
  return tiles;
}

}  // namespace fovea
