// UTF-8 validation and repair against the definition's own examples.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/utf8.h"

#include <gtest/gtest.h>

namespace fovea::utf8_test {
namespace {

const std::string kBad = "\xEF\xBF\xBD";

std::string encode(uint32_t code) {
  const auto byte = [](uint32_t value) { return static_cast<char>(value); };
  if (code < 0x80) return {byte(code)};
  if (code < 0x800) return {byte(0xC0 | (code >> 6)), byte(0x80 | (code & 63))};
  if (code < 0x10000)
    return {byte(0xE0 | (code >> 12)), byte(0x80 | ((code >> 6) & 63)), byte(0x80 | (code & 63))};
  return {byte(0xF0 | (code >> 18)), byte(0x80 | ((code >> 12) & 63)),
          byte(0x80 | ((code >> 6) & 63)), byte(0x80 | (code & 63))};
}

TEST(Utf8, ExactlyTheScalarValuesAreCharacters) {
  for (uint32_t code = 0; code <= 0x110010; ++code) {
    const std::string bytes = encode(code);
    const bool scalar = code <= 0x10FFFF && !(code >= 0xD800 && code <= 0xDFFF);
    const bool whole = valid_utf8_prefix(bytes) == bytes.size();
    ASSERT_EQ(whole, scalar) << std::hex << code;
  }
}

TEST(Utf8, OverlongFormsAreInvalid) {
  EXPECT_EQ(valid_utf8_prefix("\xC0\xAF"), 0u);
  EXPECT_EQ(valid_utf8_prefix("\xE0\x80\xAF"), 0u);
  EXPECT_EQ(valid_utf8_prefix("ok\xF0\x80\x80\xAF"), 2u);
}

// Unicode 15, section 3.9, tables 3-8 to 3-11: one U+FFFD for each maximal subpart.
TEST(Utf8, RepairFollowsTheUnicodeTables) {
  EXPECT_EQ(repair_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            kBad + kBad + kBad + kBad + kBad + kBad + kBad + kBad + "A");
  EXPECT_EQ(repair_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            kBad + kBad + kBad + kBad + kBad + kBad + kBad + kBad + "A");
  EXPECT_EQ(repair_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            kBad + kBad + kBad + kBad + kBad + "A" + kBad + kBad + "B");
  EXPECT_EQ(repair_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), kBad + kBad + kBad + kBad + "A");
}

TEST(Utf8, UnfinishedTailIsWhatMoreBytesCouldComplete) {
  const std::string smile = "\xF0\x9F\x98\x80";
  for (size_t cut = 1; cut < 4; ++cut)
    EXPECT_EQ(utf8_unfinished_tail("ab" + smile.substr(0, cut)), cut);
  EXPECT_EQ(utf8_unfinished_tail(smile), 0u);
  EXPECT_EQ(utf8_unfinished_tail("a\xE0\x80"), 0u);  // no third byte can make this valid
  EXPECT_EQ(utf8_unfinished_tail("\x80\x80\x80\x80"), 0u);
  EXPECT_EQ(utf8_unfinished_tail(""), 0u);
}

TEST(Utf8Stream, AnyCutGivesTheSameText) {
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xFF\xF0\x9F\x98\x80z\xE2\x82";
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); ++second) {
      Utf8Stream stream;
      std::string out = stream.push(text.substr(0, first));
      out += stream.push(text.substr(first, second - first));
      out += stream.push(text.substr(second));
      ASSERT_EQ(out + stream.finish(), repair_utf8(text));
    }
  }
}

}  // namespace
}  // namespace fovea::utf8_test
