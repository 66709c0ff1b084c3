// Plans of given lists: the tiles hold every seen pair once and no other (spec 4.3).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/listed_plan.h"
#include "fovea/kernels/cpu/tile_sizes.h"

#include <gtest/gtest.h>

#include "fovea/base/rng.h"
#include "tests/support/expect_error.h"

namespace fovea::listed_plan_test {
namespace {

struct Case {
  std::vector<TokenPlace> places;
  std::vector<int32_t> query_list, key_list;
  IntRowList visits;
  int64_t keep = 0;

  ListedTokens tokens() const { return {places, query_list, key_list, visits.view(), keep}; }
  bool related(int64_t i, int64_t j) const {
    const int64_t query = std::ssize(key_list) - std::ssize(query_list) + i;
    if (places[query].document != places[j].document || j > query) return false;
    if (query_list[i] < 0 || key_list[j] < 0) return false;
    for (const int32_t list : visits.of(query_list[i]))
      if (list == key_list[j]) return true;
    return false;
  }
  bool sees(int64_t i, int64_t j) const {
    if (!related(i, j)) return false;
    if (keep == 0) return true;
    int64_t later = 0;
    for (int64_t other = j + 1; other < std::ssize(key_list); ++other)
      later += related(i, other) ? 1 : 0;
    return later < keep;
  }
};

Case random_case(const std::vector<int64_t>& documents, int64_t queries, int64_t lists,
                 int64_t keep, uint64_t seed) {
  Case c;
  c.keep = keep;
  for (size_t d = 0; d < documents.size(); ++d) {
    for (int64_t n = 0; n < documents[d]; ++n)
      c.places.push_back({.document = static_cast<int64_t>(d), .position = 2 * n});
  }
  Rng random(seed);
  const auto draw = [&] {  // now and then none
    return static_cast<int32_t>(random.uniform() * static_cast<double>(lists + 1)) - 1;
  };
  for (size_t n = 0; n < c.places.size(); ++n) c.key_list.push_back(draw());
  for (int64_t n = 0; n < queries; ++n) c.query_list.push_back(draw());
  for (int32_t list = 0; list < lists; ++list) {
    for (int32_t other = 0; other < lists; ++other) {
      if (keep > 0 ? other == list : random.uniform() < 0.5) c.visits.values.push_back(other);
    }
    c.visits.end_row();
  }
  return c;
}

// As the kernels see it, from columns.
bool tile_sees(const FarPairs& far, int64_t query, int64_t key) {
  const TokenColumns &q = far.query.places, &k = far.key.places;
  const int64_t lag = int64_t{q.position[query]} - k.position[key];
  return q.document[query] == k.document[key] && lag >= 0 &&
         (!far.rule.limited || lag < far.rule.reach);
}

void expect_once(const Case& c, const std::string& what) {
  const GroupedPlan plan = make_listed_plan(c.tokens(), kernels::kTileSizes);
  std::vector<TileRange> ranges;
  for (const bool forward : {true, false}) {
    std::vector<int> times(static_cast<size_t>(plan.queries * plan.keys), 0);
    const auto visit = [&](const TileRange& range, int64_t query, int64_t key) {
      const int32_t token = plan.far.query.token[query], at = plan.far.key.token[key];
      const bool seen = tile_sees(plan.far, query, key);
      const bool full = range.kind == TileRange::Kind::full;
      EXPECT_TRUE(!full || token < 0 || (at >= 0 && seen)) << what;
      if (token >= 0 && at >= 0 && seen)
        ++times[static_cast<size_t>((token - plan.first_query()) * plan.keys + at)];
      EXPECT_FALSE(at < 0 && seen) << what;
    };
    if (forward) {
      for (const SlotBlock& block : plan.far.blocks) {
        far_tile_ranges(plan, block, ranges);
        for (const TileRange& range : ranges)
          for (int64_t i = block.begin; i < block.begin + block.rows; ++i)
            for (int64_t j = range.key_begin; j < range.key_end; ++j) visit(range, i, j);
      }
    } else {
      for (int64_t s = 0; s < std::ssize(plan.far.lists); ++s) {
        const SlotList& list = plan.far.lists[s];
        for (int64_t n = 0; n < list.keys; n += kernels::kKeyBlock) {
          const int64_t begin = list.key_begin + n,
                        end = list.key_begin + std::min(n + kernels::kKeyBlock, list.keys);
          far_query_tile_ranges(plan, s, begin, end, ranges);
          for (const TileRange& range : ranges)
            for (int64_t i = range.key_begin; i < range.key_end; ++i)
              for (int64_t j = begin; j < end; ++j) visit(range, i, j);
        }
      }
    }
    int64_t wrong = 0;
    for (int64_t i = 0; i < plan.queries; ++i)
      for (int64_t j = 0; j < plan.keys; ++j)
        wrong += times[static_cast<size_t>(i * plan.keys + j)] != (c.sees(i, j) ? 1 : 0) ? 1 : 0;
    EXPECT_EQ(wrong, 0) << what << (forward ? " forward" : " backward");
  }
}

TEST(ListedPlan, VisitsEveryPairOfVisitedListsOnce) {
  for (const int64_t lists : {1, 3, 9}) {
    expect_once(random_case({300}, 300, lists, 0, 1), "one document");
    expect_once(random_case({1, 90, 1, 130, 70}, 292, lists, 0, 2), "documents");
    expect_once(random_case({250, 50}, 77, lists, 0, 3), "chunk");
    expect_once(random_case({250}, 1, lists, 0, 4), "one query");
  }
}

TEST(ListedPlan, KeepsTheLastKeysOfAListForEveryNumber) {
  for (const int64_t keep : {1, 7, 40, 1000}) {
    for (const int64_t lists : {1, 3}) {
      expect_once(random_case({330}, 330, lists, keep, 5), "one document");
      expect_once(random_case({1, 150, 2, 147}, 300, lists, keep, 6), "documents");
      expect_once(random_case({250, 50}, 111, lists, keep, 7), "chunk");
    }
  }
}

TEST(ListedPlan, RefusesListsThatDoNotExistAndKeepAcrossLists) {
  Case c = random_case({20}, 20, 2, 0, 8);
  c.key_list[3] = 2;
  EXPECT_ERROR(ShapeError, make_listed_plan(c.tokens(), kernels::kTileSizes), "listed plan",
               "0 to 1", "2");
  c = random_case({20}, 20, 3, 0, 8);
  c.visits = {};
  c.visits.begin = {0, 2, 2, 2};
  c.visits.values = {0, 1};
  c.keep = 4;
  EXPECT_ERROR(ShapeError, make_listed_plan(c.tokens(), kernels::kTileSizes), "keep 4", "list 0");
  c = random_case({20}, 20, 2, 0, 8);
  c.query_list.resize(21);
  EXPECT_ERROR(ShapeError, make_listed_plan(c.tokens(), kernels::kTileSizes), "listed plan",
               "20 keys");
  for (const std::vector<int32_t>& visits : {std::vector{-1, 0}, {1, 0}, {1, 1}, {0, 2}}) {
    c = random_case({20}, 20, 2, 0, 8);
    c.visits.values = visits;
    c.visits.begin = {0, 2, 2};
    EXPECT_ERROR(ShapeError, make_listed_plan(c.tokens(), kernels::kTileSizes), "0 to 1, ascending",
                 "list 0");
  }
}

}  // namespace
}  // namespace fovea::listed_plan_test
