// Sizes of teams beside other programs.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/free_cores.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <thread>
#include <vector>

namespace fovea::free_cores_test {
namespace {

// A machine on which this process uses `own` cores and others `others`, read once a second.
struct Machine {
  CoreTimes times;
  double own = 0, others = 0;

  std::optional<CoreTimes> read() {
    times.now += 1.0;
    times.busy += own + others;
    times.own += own;
    return times;
  }
};

int64_t size_after(FreeCores& cores, int64_t most, int measurements) {
  int64_t size = 0;
  for (int n = 0; n < measurements; ++n) size = cores.threads(most);
  return size;
}

TEST(FreeCores, LeaveOutTheCoresThatOthersKeepBusy) {
  struct Case {
    int64_t cores, most;
    double others;
    int64_t size;
  };
  const std::vector<Case> cases{
      {2, 2, 0.0, 2},    {2, 2, 0.35, 2},  // a thread less would lose more
      {2, 2, 0.5, 1},    {2, 2, 1.0, 1},    {2, 2, 1.9, 1},    {1, 1, 1.0, 1},   {4, 4, 0.5, 3},
      {16, 16, 0.2, 16}, {16, 16, 1.0, 15}, {16, 16, 2.6, 13}, {16, 2, 12.0, 2}, {16, 8, 12.0, 4},
  };
  for (const Case& c : cases) {
    Machine machine{.times = {.cores = c.cores}, .own = 1.0, .others = c.others};
    FreeCores cores([&] { return machine.read(); });
    EXPECT_EQ(size_after(cores, c.most, 4), c.size)
        << c.cores << " cores, " << c.others << " used by others";
  }
}

TEST(FreeCores, ChangeWhenTwoMeasurementsAgree) {
  Machine machine{.times = {.cores = 4}, .own = 3.0};
  FreeCores cores([&] { return machine.read(); });
  EXPECT_EQ(size_after(cores, 4, 3), 4);
  machine.others = 1.0;
  EXPECT_EQ(cores.threads(4), 4);
  EXPECT_EQ(cores.threads(4), 3);
  machine.others = 0.0;
  EXPECT_EQ(cores.threads(4), 3);
  EXPECT_EQ(cores.threads(4), 4);
}

TEST(FreeCores, AreAllWhereTheSystemTellsNothing) {
  FreeCores cores([]() -> std::optional<CoreTimes> { return std::nullopt; });
  EXPECT_EQ(size_after(cores, 8, 3), 8);
}

TEST(FreeCores, TeamsAreRestored) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(3);
  {
    const FreeCores::Team team(2);
    EXPECT_EQ(omp_get_max_threads(), 2);
  }
  EXPECT_EQ(omp_get_max_threads(), 3);
  {
    const FreeCores::Team team(5);
    EXPECT_EQ(omp_get_max_threads(), 3);
  }
  EXPECT_EQ(omp_get_max_threads(), 3);
  omp_set_num_threads(before);
}

TEST(FreeCores, TimesOfThisMachineAscend) {
  const std::optional<CoreTimes> first = read_core_times(), second = read_core_times();
  ASSERT_TRUE(first && second);
  EXPECT_GE(first->cores, 1);
  EXPECT_LE(first->cores, static_cast<int64_t>(std::thread::hardware_concurrency()));
  EXPECT_GE(second->now, first->now);
  EXPECT_GE(second->busy, first->busy);
  EXPECT_GE(second->own, first->own);
}

}  // namespace
}  // namespace fovea::free_cores_test
