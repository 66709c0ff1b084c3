// Mask rules and range lists (seam 4 of the design; spec 4.7, 7.5, 9.10).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/tile_ranges.h"

#include <gtest/gtest.h>

#include <string>

#include "fovea/base/rng.h"

namespace fovea::tile_ranges_test {
namespace {

using Sparsity = MaskRule::Sparsity;

MaskRule random_rule(Rng& rng) {
  MaskRule rule;
  rule.causal = rng.below(4) != 0;
  rule.sinks = rng.below(2) ? static_cast<int64_t>(rng.below(5)) : 0;
  switch (rng.below(3)) {
    case 0:
      rule.window = static_cast<int64_t>(rng.below(30));
      break;
    case 1:
      rule.sparsity = Sparsity::strided;
      rule.window = static_cast<int64_t>(rng.below(6));
      rule.stride = 1 + static_cast<int64_t>(rng.below(7));
      break;
    default:
      rule.sparsity = Sparsity::fixed;
      rule.block = 1 + static_cast<int64_t>(rng.below(8));
      rule.summary = static_cast<int64_t>(rng.below(static_cast<uint64_t>(rule.block + 1)));
  }
  return rule;
}

// Packed documents of random lengths; sometimes with gaps in the positions, as an evicted cache
// has.
std::vector<TokenPlace> random_places(Rng& rng, int64_t count) {
  std::vector<TokenPlace> places;
  int64_t document = 0, position = 0;
  for (int64_t n = 0; n < count; ++n) {
    places.push_back({document, position++});
    if (rng.below(25) == 0) ++document, position = 0;
    if (rng.below(40) == 0) position += static_cast<int64_t>(rng.below(9));
  }
  return places;
}

void expect_dense_relation(const MaskRule& rule, std::span<const TokenPlace> queries,
                           std::span<const TokenPlace> keys, int64_t query_block,
                           int64_t key_tile) {
  PlanMemory memory;
  const TileRanges list = build_tile_ranges(rule, queries, keys, query_block, key_tile, memory);
  ASSERT_EQ(list.blocks(), (std::ssize(queries) + query_block - 1) / query_block);
  for (int64_t q = 0; q < std::ssize(queries); ++q) {
    std::vector<bool> seen(keys.size(), false);
    int64_t end = 0;
    for (const TileRange& range : list.of_block(q / query_block)) {
      ASSERT_GE(range.key_begin, end) << "ranges must ascend without overlap";
      ASSERT_LT(range.key_begin, range.key_end);
      end = range.key_end;
      for (int64_t k = range.key_begin; k < range.key_end; ++k) {
        seen[k] = range.kind == TileRange::Kind::full || allowed(rule, queries[q], keys[k]);
      }
    }
    ASSERT_LE(end, std::ssize(keys));
    for (int64_t k = 0; k < std::ssize(keys); ++k)
      ASSERT_EQ(seen[k], allowed(rule, queries[q], keys[k])) << "query " << q << ", key " << k;
  }
}

TEST(TileRanges, EqualTheDenseRelationForRandomRulesAndDocuments) {
  Rng rng(7);
  for (int round = 0; round < 300; ++round) {
    const MaskRule rule = random_rule(rng);
    const std::vector<TokenPlace> keys = random_places(rng, static_cast<int64_t>(rng.below(90)));
    const bool tail = rng.below(2) != 0;  // decoding: the queries are the last of the keys
    const std::vector<TokenPlace> queries =
        tail
            ? std::vector(keys.end() - static_cast<int64_t>(rng.below(keys.size() + 1)), keys.end())
            : keys;
    SCOPED_TRACE(round);
    expect_dense_relation(rule, queries, keys, 1 + static_cast<int64_t>(rng.below(20)),
                          1 + static_cast<int64_t>(rng.below(20)));
  }
}

std::vector<TokenPlace> one_document(int64_t count) {
  std::vector<TokenPlace> places;
  for (int64_t n = 0; n < count; ++n) places.push_back({0, n});
  return places;
}

TEST(TileRanges, OfACausalMaskAreOneFullRangeAndTheDiagonalTile) {
  PlanMemory memory;
  const TileRanges list = build_tile_ranges({}, one_document(64), one_document(64), 16, 16, memory);
  for (int64_t block = 0; block < 4; ++block) {
    const auto ranges = list.of_block(block);
    ASSERT_EQ(ranges.size(), block == 0 ? 1u : 2u);
    EXPECT_EQ(ranges.back().kind, TileRange::Kind::partial);
    EXPECT_EQ(ranges.back().key_end, 16 * (block + 1));
    if (block > 0) {
      EXPECT_EQ(ranges[0].kind, TileRange::Kind::full);
      EXPECT_EQ(ranges[0].key_end, 16 * block);
    }
  }
}

TEST(TileRanges, OfAWindowWithSinksSkipWhatIsBetween) {
  PlanMemory memory;
  const TileRanges list = build_tile_ranges({.window = 16, .sinks = 4}, one_document(160),
                                            one_document(160), 16, 16, memory);
  const auto ranges = list.of_block(9);
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[0].key_begin, 0);
  EXPECT_EQ(ranges[0].key_end, 16);
  EXPECT_EQ(ranges[1].key_begin, 128);
}

TEST(TileRanges, OfOtherDocumentsAreNotVisited) {
  std::vector<TokenPlace> places = one_document(64);
  for (int64_t n = 32; n < 64; ++n) places[n] = {1, n - 32};
  PlanMemory memory;
  const TileRanges list = build_tile_ranges({}, places, places, 16, 16, memory);
  ASSERT_FALSE(list.of_block(3).empty());
  for (const TileRange& range : list.of_block(3)) EXPECT_GE(range.key_begin, 32);
}

// Spec 7.5: i - j < W, W keys with self.
TEST(MaskRule, WindowCountsTheQueryItself) {
  const MaskRule rule{.window = 3};
  int64_t seen = 0;
  for (int64_t j = 0; j <= 10; ++j) seen += allowed(rule, {0, 10}, {0, j});
  EXPECT_EQ(seen, 3);
  EXPECT_TRUE(allowed(rule, {0, 10}, {0, 8}));
  EXPECT_FALSE(allowed(rule, {0, 10}, {0, 7}));
}

std::string pattern(const MaskRule& rule, int64_t i) {
  std::string row;
  for (int64_t j = 0; j < 12; ++j) row += allowed(rule, {0, i}, {0, j}) ? 'x' : '.';
  return row;
}

// Spec 4.7, drawn by hand.
TEST(MaskRule, StridedAndFixedPatternsLookAsDrawn) {
  const MaskRule strided{.window = 2, .sparsity = Sparsity::strided, .stride = 4};
  EXPECT_EQ(pattern(strided, 9), ".x...x..xx..");
  EXPECT_EQ(pattern(strided, 2), ".xx.........");
  const MaskRule fixed{.sparsity = Sparsity::fixed, .block = 4, .summary = 1};
  EXPECT_EQ(pattern(fixed, 9), "...x...xxx..");
  EXPECT_EQ(pattern(fixed, 3), "xxxx........");
  const MaskRule sinks{.window = 2, .sinks = 3};
  EXPECT_EQ(pattern(sinks, 9), "xxx.....xx..");
  EXPECT_EQ(pattern(sinks, 1), "xx..........");
}

TEST(MaskRule, AnotherDocumentIsNeverSeen) {
  for (const MaskRule& rule :
       {MaskRule{}, MaskRule{.causal = false}, MaskRule{.window = 1, .sinks = 50}}) {
    EXPECT_FALSE(allowed(rule, {1, 5}, {0, 5}));
    EXPECT_TRUE(allowed(rule, {1, 5}, {1, 5}));
  }
}

}  // namespace
}  // namespace fovea::tile_ranges_test
