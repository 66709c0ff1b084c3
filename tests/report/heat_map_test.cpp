// Heat maps: which question counts in which cell, and how they are drawn.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/heat_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "fovea/text/utf8.h"
#include "tests/support/expect_error.h"

namespace fovea::heat_map_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(HeatMap, ACellIsTheMeanOfItsQuestionsWeightedByTheirNumber) {
  const HeatPoint points[] = {{1024, 0.0, 1.0, 3}, {1024, 0.0, 0.0, 1}, {2048, 0.5, 0.5, 2}};
  const HeatMap map = make_heat_map("needles", points);
  EXPECT_THAT(map.columns, ElementsAre("1024", "2048"));
  EXPECT_THAT(map.rows, ElementsAre("0.00", "0.50"));
  EXPECT_DOUBLE_EQ(map.cells[0][0].value, 0.75);
  EXPECT_EQ(map.cells[0][0].items, 4);
  EXPECT_DOUBLE_EQ(map.cells[1][1].value, 0.5);
}

TEST(HeatMap, ACellWithoutQuestionsIsNoNumberAndIsDrawnAsSuch) {
  const HeatPoint points[] = {{1024, 0.0, 1.0}, {2048, 0.5, 0.0}};
  const HeatMap map = make_heat_map("needles", points);
  EXPECT_TRUE(std::isnan(map.cells[0][1].value));
  EXPECT_THAT(heat_map_text(map, 0), HasSubstr("–"));
  EXPECT_THAT(heat_map_svg(map), Not(HasSubstr("nan")));
}

TEST(HeatMap, TheLastRowIsTheMeanOverAllDepths) {
  const HeatPoint points[] = {{1024, 0.0, 1.0, 1}, {1024, 1.0, 0.0, 3}};
  const HeatMap map = make_heat_map("needles", points);
  EXPECT_DOUBLE_EQ(map.means[0].value, 0.25);
  EXPECT_EQ(map.means[0].items, 4);
}

TEST(HeatMap, ManyDepthsAreDrawnInTenthsAndTheEndBelongsToTheLast) {
  std::vector<HeatPoint> points;
  for (int k = 0; k <= 20; ++k) points.push_back({512, k / 20.0, k == 20 ? 1.0 : 0.0});
  const HeatMap map = make_heat_map("needles", points);
  ASSERT_EQ(map.rows.size(), 10u);
  EXPECT_EQ(map.rows.front(), "0.0-0.1");
  EXPECT_EQ(map.rows.back(), "0.9-1.0");
  EXPECT_EQ(map.cells[3][0].items, 2) << "0.30 and 0.35";
  EXPECT_EQ(map.cells[9][0].items, 3) << "0.90, 0.95 and 1";
  EXPECT_NEAR(map.cells[9][0].value, 1.0 / 3.0, 1e-12);
}

TEST(HeatMap, TheTextHasALineForEachDepthAndKeepsTheWidth) {
  std::vector<HeatPoint> points;
  for (const double length : {1024.0, 2048.0, 4096.0}) {
    for (const double depth : {0.0, 0.5, 1.0}) points.push_back({length, depth, depth});
  }
  const std::string text = heat_map_text(make_heat_map("niah_single_1", points), 0);
  EXPECT_THAT(text, HasSubstr("niah_single_1"));
  EXPECT_THAT(text, HasSubstr("100 █"));
  EXPECT_THAT(text, HasSubstr("50 ▒"));
  EXPECT_THAT(text, HasSubstr("0 ·"));
  EXPECT_EQ(std::ranges::count(text, '\n'), 8) << text;  // title, header, rule, 3 depths, rule, all
  std::string narrow = heat_map_text(make_heat_map("n", points), 24);
  for (size_t at = 0; at < narrow.size();) {
    const size_t end = narrow.find('\n', at);
    int64_t cells = 0;
    for (size_t i = at; i < end; i += utf8_step(std::string_view(narrow).substr(i)).size) ++cells;
    EXPECT_LE(cells, 24) << narrow;
    at = end + 1;
  }
}

TEST(HeatMap, ThePictureHasOneRectangleForEachCellStrongerWhereTheScoreIsHigher) {
  const HeatPoint points[] = {{1024, 0.0, 0.0}, {1024, 1.0, 1.0}};
  const std::string svg = heat_map_svg(make_heat_map("a <b>", points));
  size_t rectangles = 0;
  for (size_t at = svg.find("<rect"); at != std::string::npos; at = svg.find("<rect", at + 1))
    ++rectangles;
  EXPECT_EQ(rectangles, 3u);  // two depths and the mean
  EXPECT_THAT(svg, HasSubstr("fill-opacity=\"0.040\""));
  EXPECT_THAT(svg, HasSubstr("fill-opacity=\"0.600\""));
  EXPECT_THAT(svg, HasSubstr("a &lt;b&gt;"));
  EXPECT_THAT(svg, HasSubstr("100 % of 1 questions"));
}

TEST(HeatMap, ThePageHoldsEveryMapAndLoadsNothing) {
  const HeatPoint points[] = {{1024, 0.0, 1.0}};
  const HeatMap maps[] = {make_heat_map("first <x>", points), make_heat_map("second", points)};
  const std::string page = heat_map_page("a model", maps, "1.0");
  EXPECT_THAT(page, HasSubstr("first &lt;x&gt;"));
  EXPECT_THAT(page, HasSubstr("second"));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, Not(HasSubstr("src=")));
}

TEST(HeatMap, RefusesScoresWithoutAPlace) {
  EXPECT_ERROR(InputError, make_heat_map("needles", {}), "needles", "none");
  const HeatPoint deep[] = {{1024, 1.5, 1.0}};
  EXPECT_ERROR(InputError, make_heat_map("needles", deep), "1.5");
  const HeatPoint nowhere[] = {{NAN, 0.5, 1.0}};
  EXPECT_ERROR(InputError, make_heat_map("needles", nowhere), "nan");
}

}  // namespace
}  // namespace fovea::heat_map_test
