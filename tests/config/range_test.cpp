// Ranges of numbers: what is inside, and how they read.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/config/range.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fovea::range_test {
namespace {

TEST(Range, BothEndsAreInsideUnlessOneIsOpen) {
  EXPECT_TRUE(ranges::kShare.contains(0.0));
  EXPECT_TRUE(ranges::kShare.contains(1.0));
  EXPECT_FALSE(ranges::kBelowOne.contains(1.0));
  EXPECT_TRUE(ranges::kBelowOne.contains(std::nextafter(1.0, 0.0)));
  EXPECT_FALSE(ranges::kShare.contains(std::nextafter(1.0, 2.0)));
  EXPECT_FALSE(ranges::kShare.contains(-1e-300));
}

TEST(Range, NoRangeContainsWhatIsNoNumber) {
  for (const Range& range : {Range{}, ranges::kShare, ranges::kPositive, ranges::kAnySign})
    EXPECT_FALSE(range.contains(std::nan("")));
  EXPECT_FALSE(ranges::kAnySign.contains(std::numeric_limits<double>::infinity()));
}

TEST(Range, WholeNumbersAreComparedExactly) {
  constexpr int64_t last = int64_t{1} << 53;
  EXPECT_TRUE(ranges::kSeeds.contains(last));
  EXPECT_FALSE(ranges::kSeeds.contains(last + 1));
  EXPECT_FALSE(ranges::kSeeds.contains(std::numeric_limits<int64_t>::max()));
  EXPECT_FALSE(ranges::kSeeds.contains(std::numeric_limits<int64_t>::min()));
  EXPECT_TRUE(Range{}.contains(std::numeric_limits<int64_t>::max()));
}

TEST(Range, ReadsAsPeopleWriteNumbers) {
  EXPECT_EQ((Range{1, 1024}).text(), "1 to 1024");
  EXPECT_EQ(ranges::kBelowOne.text(), "0 to below 1");
  EXPECT_EQ(ranges::kSteps.text(), "0 to 1e12");
  EXPECT_EQ(ranges::kPositionCounts.text(), "0 to 2147483648");
  EXPECT_EQ(ranges::kPositive.text(), "positive, 1e-30 to 1e30");
  EXPECT_EQ((Range{-1, 0.5}).text(), "-1 to 0.5");
}

TEST(Range, IsStatedWhenItHasTwoEnds) {
  EXPECT_FALSE(Range{}.stated());
  EXPECT_TRUE(ranges::kShare.stated());
}

}  // namespace
}  // namespace fovea::range_test
