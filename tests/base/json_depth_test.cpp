// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/base/json_depth.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/expect_error.h"

namespace fovea {
namespace {

TEST(JsonDepth, CountsWhatIsOpenedOutsideOfTexts) {
  EXPECT_EQ(json_depth(""), 0);
  EXPECT_EQ(json_depth("7"), 0);
  EXPECT_EQ(json_depth("[]"), 1);
  EXPECT_EQ(json_depth(R"({"a": [1, {"b": 2}], "c": []})"), 3);
  EXPECT_EQ(json_depth(R"(["[[[", "\"[[", "\\", "{"])"), 1);
  EXPECT_EQ(json_depth(R"(["a text without an end [[)"), 1);
  EXPECT_EQ(json_depth(R"(["a text that ends in \)"), 1);
}

TEST(JsonDepth, MoreThanTwoHundredLevelsAreRefused) {
  const auto nested = [](size_t n) { return std::string(n, '[') + std::string(n, ']'); };
  require_shallow_json<InputError>(nested(200), "a.json");
  EXPECT_ERROR(InputError, require_shallow_json<InputError>(nested(201), "a.json"), "a.json",
               "200 levels");
}

}  // namespace
}  // namespace fovea
