// The page of a retrofit: curves and numbers, and nothing that a name could smuggle in.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/retrofit_page.h"

#include <gtest/gtest.h>

namespace fovea::retrofit_page_test {
namespace {

RetrofitPage example() {
  RetrofitPage page{.base = "a <b>base</b>",
                    .kinds = "focus",
                    .command = "fovea retrofit a --with focus",
                    .machine = "a CPU, 2 cores",
                    .base_parameters = 1000,
                    .added_parameters = 10,
                    .minutes = 1.5};
  page.rows = {{"full", "full attention", 1.0, 10.0, 1.5},
               {"trained groups", "top-1", 0.25, 12.0, 4.0},
               {"window and sinks", "window 80 and sinks", 0.25, 11.5, 30.0},
               {"trained groups", "top-2", 0.5, 11.0, 2.0},
               {"window and sinks", "window 160 and sinks", 0.5, 10.75, 28.0}};
  page.speeds = {{"full attention", 1024, 500.0, 30.5}, {"top-1", 1024, 700.0, 44.25}};
  return page;
}

TEST(RetrofitPage, ShowsEveryNumberWithOrWithoutCharts) {
  for (const char* gnuplot : {"gnuplot", "no-such-program"}) {
    const std::string page = retrofit_html(example(), {.gnuplot = gnuplot});
    for (const char* part : {"window 160 and sinks", "10.750", "28.000", "25.0 %", "44.2", "700.0",
                             "1.5 minutes", "a CPU, 2 cores"})
      EXPECT_NE(page.find(part), std::string::npos) << gnuplot << ": " << part;
    EXPECT_EQ(page.find("<b>base"), std::string::npos);
    EXPECT_EQ(page.find("http://www.w3.org") != std::string::npos ||
                  page.find("http://") == std::string::npos,
              true);
  }
  EXPECT_NE(retrofit_html(example(), {.gnuplot = "no-such-program"}).find("class=\"notice\""),
            std::string::npos);
}

TEST(RetrofitPage, BytesThatAreKnownAreDrawn) {
  RetrofitPage page = example();
  EXPECT_EQ(retrofit_html(page).find("MB read"), std::string::npos);
  page.rows[1].bytes_read = 12'340'000;
  EXPECT_NE(retrofit_html(page).find("12.34"), std::string::npos);
}

TEST(RetrofitPage, WithoutFocusItHasTheTwoModelsAndNoSpeed) {
  RetrofitPage page = example();
  page.speeds.clear();
  page.rows = {{"full", "base", 1.0, 10.0, 0.0}, {"full", "with lora", 1.0, 9.5, 0.0}};
  const std::string html = retrofit_html(page);
  EXPECT_NE(html.find("with lora"), std::string::npos);
  EXPECT_NE(html.find("9.500"), std::string::npos);
  EXPECT_EQ(html.find("id=\"speed\""), std::string::npos);
  EXPECT_EQ(html.find("A text that comes again"), std::string::npos);
}

}  // namespace
}  // namespace fovea::retrofit_page_test
