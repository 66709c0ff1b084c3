// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/infer/stop_strings.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fovea::stop_strings_test {
namespace {

/// The text shown when `text` arrives in pieces of `size` bytes.
std::string shown(const std::vector<std::string>& stops, const std::string& text, size_t size) {
  StopStrings matcher(stops);
  std::string out;
  for (size_t i = 0; i < text.size(); i += size) out += matcher.push(text.substr(i, size));
  return out + matcher.finish();
}

TEST(StopStrings, TextEndsBeforeTheFirstWhateverThePieces) {
  const std::string text = "one aab two aabaab three";
  for (size_t size = 1; size <= text.size(); ++size) {
    EXPECT_EQ(shown({"two"}, text, size), "one aab ") << size;
    EXPECT_EQ(shown({"aabaab", "three"}, text, size), "one aab two ") << size;
    EXPECT_EQ(shown({"four", "e x"}, text, size), text) << size;
    EXPECT_EQ(shown({}, text, size), text) << size;
  }
}

TEST(StopStrings, WhatCannotBeginAStopStringIsShownAtOnce) {
  StopStrings matcher({"\n\n"});
  EXPECT_EQ(matcher.push("a\n"), "a");
  EXPECT_EQ(matcher.push("b"), "\nb");
  EXPECT_EQ(matcher.push("c\n\nd"), "c");
  EXPECT_EQ(matcher.found(), "\n\n");
  EXPECT_EQ(matcher.push("e"), "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopStrings, TheEarliestWinsAndAtOnePlaceTheLongest) {
  StopStrings matcher({"b", "bc", "c"});
  EXPECT_EQ(matcher.push("abcd"), "a");
  EXPECT_EQ(matcher.found(), "bc");
}

TEST(StopStrings, EmptyAndInvalidOnesAreRefused) {
  EXPECT_ERROR(ConfigError, StopStrings({""}), "at least one character");
  EXPECT_ERROR(ConfigError, StopStrings({"\xE2\x82"}), "UTF-8");
}

}  // namespace
}  // namespace fovea::stop_strings_test
