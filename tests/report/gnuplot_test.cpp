// The child process of gnuplot and the cleaning of its SVG.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/gnuplot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "fovea/base/error.h"
#include "fovea/base/files.h"

namespace fovea::gnuplot_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

template <class E>
std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

GnuplotChart two_lines() {
  GnuplotChart chart{.width = 300, .height = 200, .label = "two \"lines\""};
  chart.script = "unset key\n$d << END\n1 2\n2 3\nEND\n";
  chart.script += "set label '" + chart.text("<b>&'\"") + "' at 1.5,2.5\n";
  chart.script +=
      "plot $d using 1:2 with lines lc rgb '" + color_code(ChartColor::kSeries + 3) + "', ";
  chart.script +=
      "$d using 1:($2+1) with points pt 7 lc rgb '" + color_code(ChartColor::kLayers + 2) + "'\n";
  chart.plots = {{.kind = "curve", .variant = "a\"b<c", .title = "<t>"},
                 {.kind = "dots", .variant = "", .title = ""}};
  return chart;
}

TEST(Gnuplot, CurvesCarryTheirVariantAndTheColorsOfTheTheme) {
  const std::string svg = GnuplotRunner().svg(two_lines());
  EXPECT_THAT(
      svg, HasSubstr("<g class=\"curve\" data-variant=\"a&quot;b&lt;c\"><title>&lt;t&gt;</title>"));
  EXPECT_THAT(svg, HasSubstr("stroke='var(--series-3)'"));
  EXPECT_THAT(svg, HasSubstr("fill='var(--layer-2)'"));
  EXPECT_THAT(svg, HasSubstr("aria-label=\"two &quot;lines&quot;\""));
  EXPECT_THAT(svg, HasSubstr("viewBox=\"0 0 300 200\""));
}

TEST(Gnuplot, TextsAreEscapedAndNothingOfTheProgramIsLeft) {
  const std::string svg = GnuplotRunner().svg(two_lines());
  EXPECT_THAT(svg, HasSubstr("&lt;b&gt;&amp;&#39;&quot;"));
  for (const char* part : {"@@", "gnuplot", " id=", "<use", "<defs", "xlink", "rgb(", "<?xml"}) {
    EXPECT_THAT(svg, Not(HasSubstr(part)));
  }
}

TEST(Gnuplot, ATextThatLooksLikeAPlaceholderStaysAText) {
  GnuplotChart chart = two_lines();
  chart.texts[0] = "@@0@@ rgb(10,11,3)";
  EXPECT_THAT(GnuplotRunner().svg(chart), HasSubstr("@@0@@ rgb(10,11,3)"));
}

TEST(Gnuplot, AMissingProgramIsNamedWithItsPackage) {
  const GnuplotRunner runner{.program = "no-such-gnuplot"};
  EXPECT_THAT(message_of<UnsupportedError>([&] { runner.run("plot x"); }),
              HasSubstr("apt-get install gnuplot-nox"));
}

TEST(Gnuplot, AScriptThatFailsSaysWhatGnuplotSaid) {
  EXPECT_THAT(message_of<IoError>([] { GnuplotRunner().run("plot nonsense(\n"); }),
              HasSubstr("nonsense"));
}

TEST(Gnuplot, AProgramThatHangsIsStopped) {
  const auto path =
      std::filesystem::temp_directory_path() / fmt::format("fovea-hang-{}", ::getpid());
  write_file(path, "#!/bin/sh\nexec sleep 600\n");
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  const GnuplotRunner runner{.program = path.string(), .timeout_seconds = 0.1};
  EXPECT_THAT(message_of<IoError>([&] { runner.run(""); }), HasSubstr("it was stopped"));
  std::filesystem::remove(path);
}

TEST(Gnuplot, MoreDataThanAPipeHoldsGoesThrough) {
  std::string script = "set terminal svg\n$d << END\n";
  for (int i = 0; i < 20000; ++i) script += fmt::format("{} {}\n", i, i % 7);
  EXPECT_GT(GnuplotRunner().run(script + "END\nplot $d with lines\n").size(), 100000u);
}

}  // namespace
}  // namespace fovea::gnuplot_test
