// The counter of dropout (seam 6 of the design).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/dropout.h"

#include <gtest/gtest.h>

namespace fovea::dropout_test {
namespace {

TEST(DropoutCounter, KeepsTheAskedShare) {
  const DropoutStream stream{.seed = 42, .layer = 1, .head = 2};
  int64_t kept = 0;
  for (int64_t i = 0; i < 300; ++i)
    for (int64_t j = 0; j < 300; ++j) kept += dropout_keeps(stream, 0.3f, i, j);
  EXPECT_NEAR(static_cast<double>(kept) / 90000.0, 0.7, 5.0 * std::sqrt(0.21 / 90000.0));
}

TEST(DropoutCounter, ZeroKeepsEverything) {
  for (int64_t j = 0; j < 1000; ++j) EXPECT_TRUE(dropout_keeps({.seed = 1}, 0.0f, 3, j));
}

TEST(DropoutCounter, EveryPartOfTheIdentityMatters) {
  const DropoutStream base{.seed = 9, .layer = 1, .head = 1};
  const auto differs = [&](const DropoutStream& other, int64_t rows) {
    for (int64_t j = 0; j < 64; ++j) {
      if (dropout_keeps(base, 0.5f, 5, j) != dropout_keeps(other, 0.5f, 5 + rows, j)) return true;
    }
    return false;
  };
  EXPECT_FALSE(differs(base, 0));
  EXPECT_TRUE(differs(base, 1));
  EXPECT_TRUE(differs({.seed = 10, .layer = 1, .head = 1}, 0));
  EXPECT_TRUE(differs({.seed = 9, .layer = 2, .head = 1}, 0));
  EXPECT_TRUE(differs({.seed = 9, .layer = 1, .head = 2}, 0));
}

}  // namespace
}  // namespace fovea::dropout_test
