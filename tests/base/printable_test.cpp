// Text from files on a terminal: nothing in it acts.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/base/printable.h"

#include <gtest/gtest.h>

namespace fovea::printable_test {
namespace {

TEST(Printable, OrdinaryTextOfAnyLanguageComesBackUnchanged) {
  for (const std::string text :
       {"", "model.layers.0", "grüße, 注意, \U0001F600", "a\nb", "\\x1b stays as it is"})
    EXPECT_EQ(printable(text), text);
}

TEST(Printable, ControlCharactersShowTheirBytes) {
  EXPECT_EQ(printable("\x1b[31mred\x07"), "\\x1b[31mred\\x07");
  EXPECT_EQ(printable("a\rb\tc\x7f"), "a\\x0db\\x09c\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b");           // C1: one-character CSI
  EXPECT_EQ(printable("\xe2\x80\xae"), "\\xe2\\x80\\xae");  // right-to-left override
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\x00b");
}

TEST(Printable, BytesThatAreNoUtf8ShowTheirValue) {
  EXPECT_EQ(printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(printable("\xc0\x80"), "\\xc0\\x80");           // overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // surrogate
  EXPECT_EQ(printable("\xe2\x82"), "\\xe2\\x82");           // cut short
}

TEST(Printable, ALineHoldsNoNewline) {
  EXPECT_EQ(printable_line("a\nfovea: all is well"), "a\\x0afovea: all is well");
}

TEST(Printable, TwiceIsAsOnce) {
  const std::string once = printable("\x1b[0m\xff");
  EXPECT_EQ(printable(once), once);
}

TEST(Shortened, LongTextLosesItsMiddleAtWholeCharacters) {
  EXPECT_EQ(shortened("short", 5), "short");
  const std::string text = "head " + std::string(1000, 'x') + " tail";
  EXPECT_EQ(shortened(text, 30),
            "head " + std::string(15, 'x') + " [... 980 bytes ...] " + "xxxxx tail");
  std::string wide;
  for (int n = 0; n < 40; ++n) wide += "\u6ce8";
  // Bytes 14 and 113 of 120 are inside of characters of three.
  EXPECT_EQ(shortened(wide, 23), "\u6ce8\u6ce8\u6ce8\u6ce8\u6ce8 [... 99 bytes ...] \u6ce8\u6ce8");
}

}  // namespace
}  // namespace fovea::printable_test
