// Philox 4x32-10: known answers, and the identities that everything random relies on.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/base/rng.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace fovea::rng_test {
namespace {

constexpr int kDraws = 20000;

// The three known-answer vectors published with the generator (counter, key -> block), lowest word
// first.
TEST(Philox, EqualsThePublishedKnownAnswers) {
  EXPECT_EQ(philox(0, 0, 0), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~0ull, ~0ull, ~0ull),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, IsAConstantExpression) {
  static_assert(philox(0, 0, 0)[0] == 0x6627e8d5);
  SUCCEED();
}

TEST(Philox, EveryBitOfKeyAndCounterMatters) {
  const PhiloxBlock base = philox(1, 2, 3);
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t flip = 1ull << bit;
    EXPECT_NE(philox(1 ^ flip, 2, 3), base);
    EXPECT_NE(philox(1, 2 ^ flip, 3), base);
    EXPECT_NE(philox(1, 2, 3 ^ flip), base);
  }
}

TEST(Uniform01, CoversTheHalfOpenIntervalExactly) {
  EXPECT_EQ(uniform01(0), 0.0f);
  EXPECT_EQ(uniform01(0x80000000u), 0.5f);
  EXPECT_EQ(uniform01(~0u), 1.0f - 0x1p-24f);
  static_assert(uniform01(~0u) < 1.0f);
}

TEST(MixSeed, GivesDistinctStreamsForDistinctPairs) {
  std::set<uint64_t> seeds;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    for (uint64_t value = 0; value < 50; ++value) seeds.insert(mix_seed(seed, value));
  }
  EXPECT_EQ(seeds.size(), 2500u);
}

TEST(Rng, GoesOnExactlyFromASavedSeedAndCounter) {
  Rng rng(42);
  for (int i = 0; i < 7; ++i) rng.next_u64();
  Rng restored(rng.seed(), rng.counter());
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(rng.uniform(), restored.uniform());
    EXPECT_EQ(rng.normal(), restored.normal());
    EXPECT_EQ(rng.below(17), restored.below(17));
  }
}

TEST(Rng, DifferentSeedsDrawDifferentNumbers) { EXPECT_NE(Rng(1).next_u64(), Rng(2).next_u64()); }

// Bounds are six standard errors of the mean of kDraws independent draws.
TEST(Rng, UniformHasMeanOneHalfAndVarianceOneTwelfth) {
  Rng rng(3);
  double sum = 0, squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = rng.uniform();
    ASSERT_TRUE(0.0 <= u && u < 1.0);
    sum += u;
    squares += (u - 0.5) * (u - 0.5);
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 6 * 0.2887 / std::sqrt(kDraws));
  EXPECT_NEAR(squares / kDraws, 1.0 / 12, 6 * 0.0745 / std::sqrt(kDraws));
}

TEST(Rng, NormalHasTheFirstFourMomentsOfAGaussian) {
  Rng rng(4);
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = rng.normal();
    ASSERT_TRUE(std::isfinite(x));
    m1 += x;
    m2 += x * x;
    m3 += x * x * x;
    m4 += x * x * x * x;
  }
  EXPECT_NEAR(m1 / kDraws, 0, 6 * 1.0 / std::sqrt(kDraws));
  EXPECT_NEAR(m2 / kDraws, 1, 6 * 1.4143 / std::sqrt(kDraws));
  EXPECT_NEAR(m3 / kDraws, 0, 6 * 3.873 / std::sqrt(kDraws));
  EXPECT_NEAR(m4 / kDraws, 3, 6 * 9.798 / std::sqrt(kDraws));
}

TEST(Rng, BelowReachesEveryValueEquallyOftenAndNoOther) {
  Rng rng(5);
  std::vector<int> counts(10);
  for (int i = 0; i < kDraws; ++i) {
    const uint64_t value = rng.below(10);
    ASSERT_LT(value, 10u);
    ++counts[value];
  }
  for (const int count : counts) EXPECT_NEAR(count, kDraws / 10.0, 6 * std::sqrt(kDraws * 0.09));
  EXPECT_EQ(Rng(6).below(1), 0u);
}

TEST(Rng, BelowHandlesRangesLargerThan32Bits) {
  Rng rng(7);
  const uint64_t n = 3ull << 40;
  uint64_t largest = 0;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t value = rng.below(n);
    ASSERT_LT(value, n);
    largest = std::max(largest, value);
  }
  EXPECT_GT(largest, n / 2);
}

}  // namespace
}  // namespace fovea::rng_test
