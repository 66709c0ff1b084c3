// Progress on a made-up terminal and clock.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fovea/base/error.h"
#include "fovea/report/format.h"

namespace fovea::progress_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Terminal {
  std::string bytes;
  double now = 100;
  int64_t width = 80;

  ProgressOptions options(ProgressOptions::Mode mode) {
    return {.mode = mode,
            .sink = [this](std::string_view text) { bytes += text; },
            .clock = [this] { return now; },
            .width = [this] { return width; },
            .redraw_seconds = 0.1,
            .line_seconds = 10};
  }
  /// What stands on the last line after all "\r" and "erase line".
  std::string shown() const {
    const size_t erased = bytes.rfind("\x1b[2K");
    return erased == std::string::npos ? bytes : bytes.substr(erased + 4);
  }
};

ProgressUpdate at(double done) {
  return {.label = "focal, seed 2",
          .done = done,
          .total = 100,
          .loss = 1.5,
          .tokens_per_second = 20400};
}

TEST(Progress, TheBarShowsLabelShareLossSpeedAndTimeLeft) {
  Terminal terminal;
  Progress progress(terminal.options(ProgressOptions::Mode::bar));
  progress.update(at(0));
  terminal.now += 30;
  progress.update(at(25));
  for (const char* part :
       {"focal, seed 2", "25 %", "loss 1.500", "20.4 k tok/s", "1 min 30 s left", "█"}) {
    EXPECT_THAT(terminal.shown(), HasSubstr(part));
  }
}

TEST(Progress, TheBarNeverReachesTheLastColumn) {
  for (int64_t width : {10, 30, 50, 80, 200}) {
    Terminal terminal;
    terminal.width = width;
    Progress progress(terminal.options(ProgressOptions::Mode::bar));
    ProgressUpdate state = at(0);
    state.label =
        "a label much longer than any terminal is wide, with 注意 in it, and then some more of it";
    progress.update(state);
    EXPECT_LT(display_width(terminal.shown()), width);
  }
}

TEST(Progress, TheBarIsFullOnlyWhenAllIsDone) {
  Terminal terminal;
  Progress progress(terminal.options(ProgressOptions::Mode::bar));
  progress.update(at(99.9));
  EXPECT_THAT(terminal.shown(), HasSubstr("99 %"));
  terminal.now += 1;
  progress.update(at(100));
  EXPECT_THAT(terminal.shown(), HasSubstr("100 %"));
  EXPECT_THAT(terminal.shown(), Not(HasSubstr("░")));
}

TEST(Progress, WorkOfAnEarlierProcessDoesNotCountAsSpeed) {
  Terminal terminal;
  Progress progress(terminal.options(ProgressOptions::Mode::bar));
  progress.update(at(80));  // resumed here
  terminal.now += 10;
  progress.update(at(85));
  EXPECT_THAT(terminal.shown(), HasSubstr("  30 s left"));
}

TEST(Progress, TheBarIsRedrawnAtMostTenTimesASecond) {
  Terminal terminal;
  Progress progress(terminal.options(ProgressOptions::Mode::bar));
  for (int i = 0; i < 1000; ++i) {
    progress.update(at(i * 0.05));
    terminal.now += 0.001;
  }
  EXPECT_LE(std::count(terminal.bytes.begin(), terminal.bytes.end(), '\r'), 11);
}

TEST(Progress, FinishLeavesNothingOnTheLine) {
  Terminal terminal;
  {
    Progress progress(terminal.options(ProgressOptions::Mode::bar));
    progress.update(at(50));
  }
  EXPECT_EQ(terminal.shown(), "");
  EXPECT_EQ(terminal.bytes.find('\n'), std::string::npos);
}

TEST(Progress, AMessageStandsAboveTheBar) {
  Terminal terminal;
  Progress progress(terminal.options(ProgressOptions::Mode::bar));
  progress.update(at(50));
  progress.message("a checkpoint was written");
  EXPECT_THAT(terminal.bytes, HasSubstr("\x1b[2Ka checkpoint was written\nfocal, seed 2"));
}

TEST(Progress, ElsewhereThereAreWholeLinesNowAndThen) {
  Terminal terminal;
  {
    Progress progress(terminal.options(ProgressOptions::Mode::lines));
    for (int i = 0; i <= 100; ++i) {
      progress.update(at(i));
      terminal.now += 0.25;
    }
  }
  EXPECT_EQ(std::count(terminal.bytes.begin(), terminal.bytes.end(), '\n'),
            4);  // 0, 10, 20 s and the end
  EXPECT_EQ(terminal.bytes.find('\r'), std::string::npos);
  EXPECT_EQ(terminal.bytes.find('\x1b'), std::string::npos);
  EXPECT_THAT(terminal.bytes, HasSubstr("\n100 %  focal, seed 2"));
}

TEST(Progress, QuietWritesNothing) {
  Terminal terminal;
  Progress progress(terminal.options(ProgressOptions::Mode::quiet));
  progress.update(at(50));
  progress.message("nothing");
  progress.finish();
  EXPECT_EQ(terminal.bytes, "");
}

TEST(Progress, AWarningIsShownAlsoWhenQuiet) {
  Terminal terminal;
  Progress quiet(terminal.options(ProgressOptions::Mode::quiet));
  quiet.warning("an older checkpoint was taken");
  EXPECT_EQ(terminal.bytes, "warning: an older checkpoint was taken\n");
  EXPECT_NO_THROW(Progress(ProgressOptions{}).warning("nobody listens"));
}

TEST(Progress, WithoutASinkItIsRefusedUnlessQuiet) {
  EXPECT_THROW(Progress({.mode = ProgressOptions::Mode::bar}), UsageError);
  EXPECT_NO_THROW(Progress(ProgressOptions{}));
}

TEST(Progress, WhatIsUnknownIsLeftOut) {
  Terminal terminal;
  Progress progress(terminal.options(ProgressOptions::Mode::bar));
  progress.update({.label = "reading text", .done = 0, .total = 0});
  EXPECT_THAT(terminal.shown(), Not(HasSubstr("nan")));
  EXPECT_THAT(terminal.shown(), Not(HasSubstr("left")));
}

}  // namespace
}  // namespace fovea::progress_test
