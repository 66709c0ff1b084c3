// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/base/by_type.h"

#include <gtest/gtest.h>

#include <string>

namespace fovea::by_type_test {
namespace {

TEST(ByType, HoldsOneValueOfEachTypeAndCopiesThemAll) {
  ByType values;
  EXPECT_EQ(values.find<int>(), nullptr);
  values.of<int>() = 3;
  values.of<std::string>() = "three";
  ByType copy = values;
  copy.of<int>() = 4;
  EXPECT_EQ(*values.find<int>(), 3);
  EXPECT_EQ(*copy.find<int>(), 4);
  EXPECT_EQ(*copy.find<std::string>(), "three");
}

}  // namespace
}  // namespace fovea::by_type_test
