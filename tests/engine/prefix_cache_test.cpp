// The tree of beginnings.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/engine/prefix_cache.h"

#include <gtest/gtest.h>

#include "tests/infer/tiny_writer.h"

namespace fovea::prefix_cache_test {
namespace {

using namespace fovea::testing;

constexpr int64_t kChunk = 4;

class PrefixCacheTest : public ::testing::Test {
 protected:
  SharedState state() { return std::make_shared<const DecodeState>(model.make_decode_state(1, 4)); }
  static std::vector<int32_t> tokens(int32_t last) { return {1, 2, 3, 4, 5, 6, 7, last}; }

  const Transformer model = tiny();
  PrefixCache cache{kChunk};
};

TEST_F(PrefixCacheTest, FindsWholeChunksOfTheSameTokens) {
  const SharedState first = state(), second = state(), other = state();
  cache.insert(tokens(8), 1, first, 1);
  cache.insert(tokens(8), 2, second, 2);
  cache.insert(tokens(9), 2, other, 3);
  EXPECT_EQ(cache.find(tokens(8), 1, 4), first);
  EXPECT_EQ(cache.find(tokens(8), 2, 5), second);
  EXPECT_EQ(cache.find(tokens(9), 2, 6), other);
  EXPECT_EQ(cache.find(tokens(7), 2, 7), nullptr);
  EXPECT_EQ(cache.find(std::vector<int32_t>{1, 2, 3}, 1, 8), nullptr);
  EXPECT_EQ(cache.bytes(), 3 * first->bytes());
}

TEST_F(PrefixCacheTest, AChunkWithoutTheOnesBeforeItIsNotKept) {
  cache.insert(tokens(8), 2, state(), 1);
  EXPECT_TRUE(cache.empty());
  EXPECT_EQ(cache.bytes(), 0);
}

TEST_F(PrefixCacheTest, TheLeastRecentLeafGoesFirst) {
  cache.insert(tokens(8), 1, state(), 1);
  cache.insert(tokens(8), 2, state(), 2);
  cache.insert(tokens(9), 2, state(), 3);
  EXPECT_NE(cache.find(tokens(8), 2, 4), nullptr);
  EXPECT_EQ(cache.oldest(), 3U);
  EXPECT_GT(cache.evict(), 0);
  EXPECT_EQ(cache.find(tokens(9), 2, 5), nullptr);
  EXPECT_NE(cache.find(tokens(8), 2, 6), nullptr);
  cache.evict();
  EXPECT_EQ(cache.find(tokens(8), 2, 7), nullptr);
  EXPECT_NE(cache.find(tokens(8), 1, 8), nullptr);
  cache.evict();
  EXPECT_TRUE(cache.empty());
  EXPECT_EQ(cache.bytes(), 0);
  EXPECT_EQ(cache.evict(), 0);
}

}  // namespace
}  // namespace fovea::prefix_cache_test
