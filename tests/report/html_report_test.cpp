// The page as text, and the curves behind its charts; what a browser makes of it is in
// browser_test/.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/html_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fovea/report/charts.h"
#include "fovea/report/series.h"
#include "tests/report/example_result.h"

namespace fovea::html_report_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(HtmlReport, TheSameResultGivesTheSameBytes) {
  EXPECT_EQ(html_report(testing::example_result()), html_report(testing::example_result()));
}

TEST(HtmlReport, NoTextBecomesMarkup) {
  const std::string page = html_report(testing::hostile_result());
  for (const char* part : {"<script>window", "<img", "<style>body", "<a href",
                           "</title> \"quoted\"", "<!-- ", "\x1b[31m<"}) {
    EXPECT_THAT(page, Not(HasSubstr(part)));
  }
}

TEST(HtmlReport, NothingIsLoadedFromAnywhere) {
  const std::string page = html_report(testing::example_result());
  for (const char* part : {"http:", "https:", "src=", "@import", "url("})
    EXPECT_THAT(page, Not(HasSubstr(part)));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
}

TEST(HtmlReport, WithoutGnuplotTheNumbersStandInPlaceOfTheCharts) {
  const std::string page = html_report(testing::example_result(), {.gnuplot = "no-such-gnuplot"});
  EXPECT_THAT(page, HasSubstr("apt-get install gnuplot-nox"));
  EXPECT_THAT(page, Not(HasSubstr("<svg")));
  EXPECT_THAT(page, HasSubstr("<details open>"));
}

TEST(HtmlReport, EveryStateOfAComparisonHasAPage) {
  EXPECT_THAT(html_report(CompareResult{}), HasSubstr("nothing to compare with"));
  CompareResult result = testing::example_result();
  for (CompareRun& run : result.variants[1].runs)
    run = {.seed = run.seed, .failure = "it diverged"};
  result.variants[2].runs[0].curve.resize(1);
  result.variants[2].runs[0].validation_curve.clear();
  for (CurvePoint& point : result.variants[3].runs[0].curve) point.train_loss = kNotANumber;
  result.baselines.push_back({"unknown", kNotANumber});
  summarise(result);
  const std::string page = html_report(result);
  EXPECT_THAT(page, HasSubstr("it diverged"));
  EXPECT_THAT(page, Not(HasSubstr("Charts could not be drawn")));
}

TEST(HtmlReport, ABudgetOfTimeDrawsOverTime) {
  CompareResult result = testing::example_result();
  result.budget = BudgetKind::time;
  result.budget_amount = 75;
  EXPECT_EQ(progress_axis(result).title, "seconds");
  const std::string page = html_report(result);
  EXPECT_THAT(page, HasSubstr(">seconds<"));
  EXPECT_THAT(page, Not(HasSubstr("Charts could not be drawn")));
}

TEST(HtmlReport, LnZIsDrawnWhereItWasLogged) {
  CompareResult result = testing::example_result();
  const HtmlReportOptions without_charts{.gnuplot = "no-such-gnuplot"};
  const std::string title = "<h3>ln Z of the logits</h3>";
  EXPECT_THAT(html_report(result, without_charts), HasSubstr(title));
  for (CompareVariant& variant : result.variants) {
    for (CompareRun& run : variant.runs)
      for (CurvePoint& point : run.curve) point.ln_z = point.ln_z_rms = kNotANumber;
  }
  EXPECT_THAT(html_report(result, without_charts), Not(HasSubstr(title)));
}

TEST(Series, InterpolationIsLinearBetweenPointsAndConstantOutside) {
  const Line line{{1, 2, 4}, {10, 20, 0}};
  EXPECT_DOUBLE_EQ(line.at(1.5), 15);
  EXPECT_DOUBLE_EQ(line.at(3), 10);
  EXPECT_DOUBLE_EQ(line.at(0), 10);
  EXPECT_DOUBLE_EQ(line.at(9), 0);
}

TEST(Series, ABandIsMeanLowestAndHighestWhereAllSeedsAre) {
  const Band band = combine(7, {{{0, 1, 2, 3}, {0, 1, 2, 3}}, {{1, 2, 3}, {3, 4, 5}}});
  EXPECT_EQ(band.variant, 7u);
  EXPECT_THAT(band.x, ElementsAre(1, 2, 3));
  EXPECT_THAT(band.mean, ElementsAre(2, 3, 4));
  EXPECT_THAT(band.low, ElementsAre(1, 2, 3));
  EXPECT_THAT(band.high, ElementsAre(3, 4, 5));
}

TEST(Series, SmoothingKeepsTheMean) {
  Line line;
  for (int i = 0; i < 1000; ++i) {
    line.x.push_back(i);
    line.y.push_back(i % 2);
  }
  const Line smooth_line = smooth(line, 100);
  EXPECT_EQ(smooth_line.x.size(), 100u);
  for (const double y : smooth_line.y) EXPECT_DOUBLE_EQ(y, 0.5);
}

TEST(Series, TheDifferenceOfTheReferenceToItselfIsZeroAndOthersArePaired) {
  const CompareResult result = testing::example_result();
  const auto bands = difference_bands(result, progress_axis(result));
  ASSERT_EQ(bands.size(), 4u);
  for (const double value : bands[0].high) EXPECT_EQ(value, 0);
  EXPECT_NEAR(bands[1].mean.back(), result.variants[1].summary.difference, 1e-9);
}

TEST(Charts, TheReferenceHasTheFirstColorWhereverItStands) {
  CompareResult result = testing::example_result();
  result.reference = "focal prefix";
  EXPECT_EQ(series_of(result, 2), 0);
  EXPECT_EQ(series_of(result, 0), 1);
  EXPECT_EQ(series_of(result, 3), 3);
}

}  // namespace
}  // namespace fovea::html_report_test
