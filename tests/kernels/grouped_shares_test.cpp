// Shares of the backward pass of grouped attention: every key block is in one share, and a row that
// a near share writes alone is reached by no other.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/grouped_shares.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/member_patterns.h"

namespace fovea {
namespace {

using namespace fovea::testing;
using kernels::KeyBlock;
using kernels::KeyShare;

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
                           {.places = places, .members = members, .queries = c.queries}, kind);
}

// Rows that the tiles of a share's blocks touch.
std::pair<int64_t, int64_t> reached(const GroupedPlan& plan, const KeyShare& share) {
  int64_t begin = share.row_end, end = share.row_begin;
  std::vector<Strip> strips;
  for (const KeyBlock& block : share.blocks) {
    share.far ? far_query_strips(plan, block.list, block.begin, block.end, strips)
              : near_query_strips(plan, block.begin, block.end, strips);
    for (const Strip& strip : strips) {
      begin = std::min(begin, strip.key_begin);
      end = std::max(end, strip.key_end);
    }
  }
  return {begin, end};
}

void expect_shares(const GroupedPlan& plan, const std::string& what) {
  const std::vector<KeyShare> shares = kernels::key_shares(plan);
  std::vector<int> near_keys(static_cast<size_t>(plan.keys));
  std::vector<int> slots(plan.far.key.token.size()), rows(static_cast<size_t>(plan.queries) + 64);
  for (const KeyShare& share : shares) {
    const auto [begin, end] = reached(plan, share);
    EXPECT_GE(begin, share.row_begin) << what;
    EXPECT_LE(end, share.row_end) << what;
    int64_t last = -1;
    for (const KeyBlock& block : share.blocks) {
      EXPECT_LE(block.end - block.begin, kKeyBlock) << what;
      if (!share.far) {
        EXPECT_GT(block.begin, last) << what;  // a near share walks forwards
      }
      last = block.begin;
      for (int64_t n = block.begin; n < block.end; ++n) ++(share.far ? slots : near_keys)[n];
      if (share.component < 0) continue;
      EXPECT_EQ(plan.far.lists[block.list].component, share.component) << what;
      for (const int32_t visitor : plan.far.visited_by.of(block.list))
        EXPECT_EQ(plan.far.lists[visitor].component, share.component) << what;
      EXPECT_GE(block.begin, share.key_begin) << what;
      EXPECT_LE(block.end, share.key_end) << what;
    }
    if (!share.far && plan.has_far())
      for (int64_t i = share.row_begin; i < share.row_end; ++i) ++rows[i];
  }
  for (const int count : near_keys) EXPECT_EQ(count, 1) << what;
  for (const SlotList& list : plan.far.lists) {
    for (int64_t n = list.key_begin; n < list.key_begin + list.keys; ++n)
      EXPECT_EQ(slots[n], 1) << what;
  }
  for (const KeyShare& share : shares) {
    for (int64_t i = share.alone_begin; i < share.alone_end; ++i)
      EXPECT_EQ(rows[i], 1) << what << " row " << i;
  }
}

TEST(GroupedShares, HoldEveryKeyOnceAndWriteRowsThatNoOtherReaches) {
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
      expect_shares(plan_of(c, kind),
                    c.name + " " + std::string(enum_names(kind)[static_cast<size_t>(kind)]));
  }
}

// Memory stays linear: what near shares keep for later is a window or two a stretch.
TEST(GroupedShares, LeaveFewRowsForLater) {
  const GroupedPlan plan = plan_of({"", 8192, 8192}, GroupedKind::classes);
  int64_t left = 0;
  for (const KeyShare& share : kernels::key_shares(plan))
    if (!share.far) left += share.rows() - (share.alone_end - share.alone_begin);
  EXPECT_GT(left, 0);
  EXPECT_LE(left, 8 * 2 * (24 + 2 * kVisitTile));
}

}  // namespace
}  // namespace fovea
