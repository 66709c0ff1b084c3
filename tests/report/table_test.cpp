// Text tables, cell widths, units, and the answer in words.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "fovea/report/format.h"
#include "tests/report/example_result.h"

namespace fovea::table_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(TextTable, ColumnsAlignByCellsAndNotByBytes) {
  TextTable table({{.title = "name", .shrinks = true}, {.title = "n", .right = true}});
  table.add_row({"é注", "1"});
  table.add_row({"abcdef", "1000"});
  EXPECT_EQ(table.render(0),
            "name       n\n"
            "────────────\n"
            "é注        1\n"
            "abcdef  1000\n");
}

TEST(TextTable, NoLineIsWiderThanAsked) {
  const CompareResult result = testing::hostile_result();
  for (const int64_t width : {20, 40, 60, 80, 120, 200}) {
    for (const std::string& line : lines_of(compare_table(result, width))) {
      EXPECT_LE(display_width(line), width) << line;
    }
  }
}

TEST(TextTable, ColumnsThatDoNotFitLeaveByImportanceAndAreNamed) {
  const std::string wide = compare_table(testing::example_result(), 155);
  EXPECT_THAT(wide, AllOf(HasSubstr("parameters"), Not(HasSubstr("Left out"))));
  const std::string narrow = compare_table(testing::example_result(), 84);
  EXPECT_THAT(narrow, HasSubstr("Left out for want of room: parameters"));
  EXPECT_THAT(lines_of(narrow)[0],
              AllOf(HasSubstr("verdict"), HasSubstr("bits/byte"), Not(HasSubstr("parameters"))));
}

TEST(TextTable, ControlCharactersOfANameCannotReachTheTerminal) {
  TextTable table({{.title = "name"}});
  table.add_row({"a\x1b[2Jb\nc\xC2\x9B"});
  const std::string text = table.render(0);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find("\xC2\x9B"), std::string::npos);
  EXPECT_EQ(lines_of(text).size(), 3u);
}

TEST(CompareTable, HoldsEveryVariantBaselineAndVerdict) {
  const std::string text = compare_table(testing::example_result(), 160);
  for (const char* part :
       {"standard", "focal t = 0.4", "sharp start", "byte bigram", "3.312", "2.684",
        "baseline, 31.0 MB", "reference", "better", "worse", "inside the spread",
        "-0.0391 to -0.0227", "0.011", "Holm's method", "seeds needed", "108", "1.26 M", "MB"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(CompareTable, ARunThatFailedIsExplained) {
  CompareResult result = testing::example_result();
  result.variants[1].runs[2].failure = "the loss is not a number at step 12";
  summarise(result);
  EXPECT_THAT(compare_table(result, 0),
              HasSubstr("focal t = 0.4, seed 3: the loss is not a number at step 12"));
}

TEST(CompareSamples, KeepTheLinesOfCode) {
  EXPECT_THAT(compare_samples(testing::example_result(), 80),
              HasSubstr("\n        return self.module(input"));
}

TEST(Text, WidthsAreCells) {
  EXPECT_EQ(display_width("abc"), 3);
  EXPECT_EQ(display_width("注意"), 4);
  EXPECT_EQ(display_width("e\xCC\x81"), 1);  // combining acute
  EXPECT_EQ(shorten("abcdef", 4), "abc…");
  EXPECT_EQ(shorten("注意力", 4), "注…");
  EXPECT_EQ(shorten("abcd", 4), "abcd");
}

TEST(Text, WrappingBreaksAtSpacesAndLosesNothing) {
  EXPECT_EQ(wrap_text("aa bb cc", 5), (std::vector<std::string>{"aa bb", "cc"}));
  EXPECT_EQ(wrap_text("abcdefgh", 3), (std::vector<std::string>{"abc", "def", "gh"}));
  EXPECT_EQ(wrap_text("", 3), (std::vector<std::string>{""}));
}

TEST(Text, UnitsKeepThreeDigits) {
  EXPECT_EQ(count_text(987), "987");
  EXPECT_EQ(count_text(999.7e3), "1.00 M");
  EXPECT_EQ(count_text(12345), "12.3 k");
  EXPECT_EQ(bytes_text(912e6), "912 MB");
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(count_text(kNotANumber), "–");
  EXPECT_EQ(duration_text(59.7), "1 min 00 s");
  EXPECT_EQ(duration_text(3.2), "3 s");
  EXPECT_EQ(duration_text(7620), "2 h 07 min");
  EXPECT_EQ(duration_text(86400 * 3 + 4 * 3600), "3 d 04 h");
}

TEST(Answer, SaysWhatEachVariantCameTo) {
  const Answer answer = compare_answer(testing::example_result());
  EXPECT_EQ(answer.question,
            "4 variants on the same data in the same order, 3 seeds, 1.64 M tokens each.");
  ASSERT_EQ(answer.findings.size(), 4u);
  EXPECT_EQ(answer.findings[0].kind, Finding::Kind::better);
  EXPECT_THAT(answer.findings[0].text,
              AllOf(HasSubstr("focal t = 0.4 is better than standard"),
                    HasSubstr("interval -0.0391 to -0.0227, corrected p 0.011")));
  EXPECT_THAT(answer.findings[1].text, HasSubstr("sharp start is worse"));
  EXPECT_THAT(answer.findings[2].text, AllOf(HasSubstr("focal prefix is inside the spread"),
                                             HasSubstr("108 (focal prefix)")));
  EXPECT_THAT(answer.findings[3].text, HasSubstr("better than the baseline byte bigram (3.312)"));
}

TEST(Answer, ADifferenceThatShrinksIsCalledAnEffectOfTheFirstSteps) {
  CompareResult result = testing::example_result();
  const auto shrinks = [&] {
    std::string out;
    for (const Finding& finding : compare_answer(result).findings) {
      if (finding.text.find("shrinks") != std::string::npos) out += finding.text;
    }
    return out;
  };
  const auto lead = [&](double at_half, double at_end) {
    for (CompareVariant& variant : result.variants) {
      for (CompareRun& run : variant.runs) {
        const bool focal = variant.name == "focal t = 0.4";
        const double noise = 1e-4 * static_cast<double>(run.seed);
        run.validation_curve = {
            {.step = 200, .tokens = 800'000, .bits_per_byte = 3 + (focal ? at_half + noise : 0)},
            {.step = 400, .tokens = 1'600'000, .bits_per_byte = 2 + (focal ? at_end + noise : 0)}};
      }
    }
  };
  lead(-0.2, -0.03);
  EXPECT_THAT(shrinks(), AllOf(HasSubstr("focal t = 0.4 to standard shrinks: -0.1998"),
                               HasSubstr("-0.0298 at its end"), HasSubstr("first steps")));
  lead(-0.03, -0.03);
  EXPECT_EQ(shrinks(), "");
}

TEST(Answer, SaysWhereNothingCanBeSaid) {
  EXPECT_THAT(compare_answer(testing::example_result(1)).findings[0].text,
              HasSubstr("one seed only"));
  CompareResult result = testing::example_result();
  result.baselines = {{"perfect", 0.1}};
  EXPECT_THAT(compare_answer(result).findings.back().text,
              HasSubstr("Not every run reaches the baseline perfect"));
  result.variants[0].runs.clear();
  summarise(result);
  EXPECT_THAT(compare_answer(result).findings[0].text, HasSubstr("nothing to compare with"));
}

}  // namespace
}  // namespace fovea::table_test
