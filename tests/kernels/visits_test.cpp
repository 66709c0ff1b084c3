// Visits say the same as the relation `allowed()`, from both sides.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/visits.h"
#include "fovea/kernels/cpu/tile_sizes.h"

#include <gtest/gtest.h>

#include "fovea/base/rng.h"
#include "tests/support/expect_error.h"

namespace fovea::visits_test {
namespace {

using namespace fovea::testing;
using Sparsity = MaskRule::Sparsity;

std::vector<TokenPlace> random_places(Rng& random, int64_t count) {
  std::vector<TokenPlace> places;
  for (int64_t n = 0; n < count; ++n) {
    const bool next = n > 0 && random.below(60) != 0;
    places.push_back(next ? TokenPlace{places.back().document, places.back().position + 1}
                          : TokenPlace{static_cast<int64_t>(random.below(3)) * 1000000007, 0});
  }
  return places;
}

// The comparisons that kernels make in vectors.
bool seen(const Visits& v, int64_t i, int64_t j) {
  if (v.query.document[i] != v.key.document[j]) return false;
  const int32_t lag = v.query.position[i] - v.key.position[j];
  if (v.rule.causal && lag < 0) return false;
  if (!v.rule.limited) return true;
  return std::abs(lag) < v.rule.reach ||
         (v.rule.patterned && v.query.pattern_id[i] == v.key.pattern_id[j]) ||
         ((v.key.open[j] & TokenColumns::kOpenBefore) != 0 && lag >= 0) ||
         (v.key.open[j] & TokenColumns::kOpenAlways) != 0;
}

std::vector<MaskRule> rules() {
  return {{},
          {.causal = false},
          {.window = 40, .sinks = 3},
          {.causal = false, .window = 70, .sinks = 2},
          {.window = 5, .sparsity = Sparsity::strided, .stride = 9},
          {.causal = false, .sparsity = Sparsity::strided, .stride = 33},
          {.sinks = 1, .sparsity = Sparsity::fixed, .block = 20, .summary = 3},
          {.causal = false, .sparsity = Sparsity::fixed, .block = 90, .summary = 1}};
}

TEST(Visits, RestateTheRelationInIntegersOfTheTokens) {
  Rng random(3);
  for (const MaskRule& rule : rules()) {
    const auto queries = random_places(random, 130), keys = random_places(random, 301);
    const Visits visits = make_visits(rule, queries, keys, kernels::kTileSizes);
    for (int64_t i = 0; i < 130; ++i) {
      for (int64_t j = 0; j < 301; ++j)
        ASSERT_EQ(seen(visits, i, j), allowed(rule, queries[i], keys[j])) << i << " " << j;
    }
  }
}

TEST(Visits, PaddingSeesAndIsSeenByNothing) {
  const std::vector<TokenPlace> one{{0, 0}};
  const Visits visits = make_visits({.causal = false}, one, one, kernels::kTileSizes);
  for (size_t n = 1; n < visits.key.document.size(); ++n) {
    EXPECT_NE(visits.key.document[n], visits.query.document[0]);
    EXPECT_NE(visits.query.document[n], visits.key.document[0]);
    EXPECT_NE(visits.query.document[n], visits.key.document[n]);
  }
}

TEST(Visits, RangesOfKeysHoldEveryPairOnceAndFullOnesOnlyAllowedPairs) {
  Rng random(5);
  const auto expect_once = [&](const MaskRule& rule, const TileSizes& sizes) {
    const auto queries = random_places(random, 333), keys = random_places(random, 290);
    const Visits visits = make_visits(rule, queries, keys, sizes);
    std::vector<int> times(333 * 290, 0);
    for (int64_t b = 0; b < visits.by_key.blocks(); ++b) {
      for (const TileRange& range : visits.by_key.of_block(b)) {
        for (int64_t i = range.key_begin; i < range.key_end; ++i) {
          for (int64_t j = b * sizes.keys; j < std::min<int64_t>((b + 1) * sizes.keys, 290); ++j) {
            ++times[i * 290 + j];
            if (range.kind == TileRange::Kind::full) {
              ASSERT_TRUE(allowed(rule, queries[i], keys[j])) << i << " " << j;
            }
          }
        }
      }
    }
    for (int64_t i = 0; i < 333; ++i) {
      for (int64_t j = 0; j < 290; ++j) {
        ASSERT_LE(times[i * 290 + j], 1);
        if (allowed(rule, queries[i], keys[j])) {
          ASSERT_EQ(times[i * 290 + j], 1) << i << " " << j;
        }
      }
    }
  };
  // Those of the CPU, and those that another backend could have.
  for (const TileSizes& sizes :
       {kernels::kTileSizes, TileSizes{.queries = 48, .keys = 96, .tile = 16},
        TileSizes{.queries = 128, .keys = 64, .tile = 64}})
    for (const MaskRule& rule : rules()) expect_once(rule, sizes);
}

TEST(Visits, KnowWhetherTokensStandInOrder) {
  using Places = std::vector<TokenPlace>;
  const auto ordered = [](const Places& queries, const Places& keys) {
    return make_visits({}, queries, keys, kernels::kTileSizes).ordered;
  };
  const Places two{{7, 0}, {7, 2}, {3, 0}, {3, 1}};
  EXPECT_TRUE(ordered(two, two));
  EXPECT_TRUE(ordered({{3, 1}}, two));
  for (const Places& other :
       {Places{{7, 0}, {7, 2}, {7, 2}}, Places{{7, 1}, {7, 0}}, Places{{7, 0}, {3, 0}, {7, 1}}}) {
    EXPECT_FALSE(ordered(other, two));
    EXPECT_FALSE(ordered(two, other));
  }
}

TEST(Visits, RefusePositionsBeyond31BitsByName) {
  const std::vector<TokenPlace> far{{0, int64_t{1} << 40}};
  EXPECT_ERROR(ShapeError, make_visits({}, far, far, kernels::kTileSizes), "positions");
}

TEST(RowVisits, RestateTheRelationAsTwoRangesOfKeys) {
  // A cache that keeps 3 sinks and the positions from 50 on.
  const std::vector<KeyRange> runs{{0, 3, 0}, {3, 40, 47}};
  const auto position = [](int64_t j) { return j < 3 ? j : j + 47; };
  for (const MaskRule& rule : rules()) {
    for (const int64_t i : {1, 49, 60, 86, 200}) {
      const auto row = row_visits(rule, i, runs);
      if (rule.sparsity != Sparsity::full) {
        EXPECT_FALSE(row);
        continue;
      }
      ASSERT_TRUE(row);
      EXPECT_EQ(row->position, i);
      for (int64_t j = 0; j < 40; ++j) {
        int64_t met = 0;
        for (const KeyRange& range : {row->near, row->far}) {
          if (j < range.begin || j >= range.end) continue;
          ++met;
          EXPECT_EQ(j + range.shift, position(j));
        }
        EXPECT_EQ(met, allowed(rule, {0, i}, {0, position(j)}) ? 1 : 0) << i << " " << j;
      }
    }
  }
}

TEST(RowVisits, AreRefusedWhereTwoRangesDoNotDo) {
  const std::vector<KeyRange> runs{{0, 3, 0}, {3, 5, 10}, {5, 9, 20}};
  EXPECT_FALSE(row_visits({}, 100, runs));
}

}  // namespace
}  // namespace fovea::visits_test
