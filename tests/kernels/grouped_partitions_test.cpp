// Partitions of the backward pass of grouped attention: every key block is in one partition, and a
// row that a near partition writes alone is reached by no other.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/grouped/grouped_partitions.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/member_patterns.h"

namespace fovea::grouped_partitions_test {
namespace {

using namespace fovea::testing;
using kernels::KeyBlock;
using kernels::KeyPartition;

struct Case {
  std::string name;
  int64_t tokens = 0, queries = 0, groups = 8, top_k = 1, window = 24, documents = 1, sinks = 0;
  int64_t run = 1;  ///< tokens that keep a choice, on average
};

GroupedPlan plan_of(const Case& c, GroupedKind kind) {
  std::vector<TokenPlace> places;
  for (int64_t n = 0; n < c.tokens; ++n) {
    const int64_t document = n * c.documents / c.tokens;
    const bool same = !places.empty() && places.back().document == document;
    places.push_back({.document = document, .position = same ? places.back().position + 1 : 0});
  }
  const std::vector<uint64_t> members = sticky_sets(c.tokens, c.groups, c.top_k, c.run, 5);
  return make_grouped_plan({.groups = c.groups, .window = c.window, .sinks = c.sinks},
                           {.places = places, .members = members, .queries = c.queries},
                           kernels::kTileSizes, kind);
}

// Rows that the tiles of a partition's blocks touch.
std::pair<int64_t, int64_t> reached(const GroupedPlan& plan, const KeyPartition& partition) {
  int64_t begin = partition.row_end, end = partition.row_begin;
  std::vector<TileRange> ranges;
  for (const KeyBlock& block : partition.blocks) {
    partition.far ? far_query_tile_ranges(plan, block.list, block.begin, block.end, ranges)
                  : near_query_tile_ranges(plan, block.begin, block.end, ranges);
    for (const TileRange& range : ranges) {
      begin = std::min(begin, range.key_begin);
      end = std::max(end, range.key_end);
    }
  }
  return {begin, end};
}

void expect_partitions(const GroupedPlan& plan, const std::string& what) {
  const std::vector<KeyPartition> partitions = kernels::key_partitions(plan);
  std::vector<int> near_keys(static_cast<size_t>(plan.keys));
  std::vector<int> slots(plan.far.key.token.size()), rows(static_cast<size_t>(plan.queries) + 64);
  for (const KeyPartition& partition : partitions) {
    const auto [begin, end] = reached(plan, partition);
    EXPECT_GE(begin, partition.row_begin) << what;
    EXPECT_LE(end, partition.row_end) << what;
    int64_t last = -1;
    for (const KeyBlock& block : partition.blocks) {
      EXPECT_LE(block.end - block.begin, kernels::kKeyBlock) << what;
      if (!partition.far) {
        EXPECT_GT(block.begin, last) << what;  // a near partition walks forwards
      }
      last = block.begin;
      for (int64_t n = block.begin; n < block.end; ++n) ++(partition.far ? slots : near_keys)[n];
      if (partition.component < 0) continue;
      EXPECT_EQ(plan.far.lists[block.list].component, partition.component) << what;
      for (const int32_t visitor : plan.far.visited_by.of(block.list))
        EXPECT_EQ(plan.far.lists[visitor].component, partition.component) << what;
      EXPECT_GE(block.begin, partition.key_begin) << what;
      EXPECT_LE(block.end, partition.key_end) << what;
    }
    if (!partition.far && plan.has_far())
      for (int64_t i = partition.row_begin; i < partition.row_end; ++i) ++rows[i];
  }
  for (const int count : near_keys) EXPECT_EQ(count, 1) << what;
  for (const SlotList& list : plan.far.lists) {
    for (int64_t n = list.key_begin; n < list.key_begin + list.keys; ++n)
      EXPECT_EQ(slots[n], 1) << what;
  }
  for (const KeyPartition& partition : partitions) {
    for (int64_t i = partition.alone_begin; i < partition.alone_end; ++i)
      EXPECT_EQ(rows[i], 1) << what << " row " << i;
  }
}

TEST(GroupedPartitions, HoldEveryKeyOnceAndWriteRowsThatNoOtherReaches) {
  const Case cases[] = {{"short", 100, 100},
                        {"one token", 1, 1},
                        {"several stretches", 3500, 3500},
                        {"a chunk that begins anywhere", 3500, 1777},
                        {"a window over a stretch", 5000, 4003, 8, 1, 1100},
                        {"a window of a stretch", 5000, 4007, 8, 1, 1024},
                        {"a window over everything", 300, 300, 8, 1, 400},
                        {"documents", 3500, 3500, 8, 1, 24, 9},
                        {"few components", 6000, 6000, 2, 1},
                        {"sets that meet", 3000, 3000, 8, 2},
                        {"sinks", 3000, 3000, 8, 1, 24, 1, 4},
                        {"sinks beside sets that meet", 300, 300, 8, 2, 24, 1, 3, 40},
                        {"many groups", 3000, 3000, 64, 1}};
  for (const Case& c : cases) {
    for (const GroupedKind kind :
         {GroupedKind::block_sparse, GroupedKind::classes, GroupedKind::groups})
      expect_partitions(plan_of(c, kind),
                        c.name + " " + std::string(enum_names(kind)[static_cast<size_t>(kind)]));
  }
}

// Memory stays linear: what near partitions keep for later is a window or two a stretch.
TEST(GroupedPartitions, LeaveFewRowsForLater) {
  const GroupedPlan plan = plan_of({"", 8192, 8192}, GroupedKind::classes);
  int64_t left = 0;
  for (const KeyPartition& partition : kernels::key_partitions(plan))
    if (!partition.far) left += partition.rows() - (partition.alone_end - partition.alone_begin);
  EXPECT_GT(left, 0);
  EXPECT_LE(left, 8 * 2 * (24 + 2 * kernels::kVisitTile));
}

}  // namespace
}  // namespace fovea::grouped_partitions_test
