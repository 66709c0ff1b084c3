// The table, the file and the picture of a profile.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/step_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "fovea/base/files.h"
#include "fovea/report/claim_evidence.h"

namespace fovea::step_profile_test {
namespace {

using ::testing::HasSubstr;

/// Three steps: norms take a quarter of the time and a hundredth of the FLOPs.
StepProfile example() {
  StepProfile profile{.run = "tiny",
                      .machine = "a CPU, 2 cores",
                      .tokens = 512,
                      .seconds = {0.4, 0.8, 0.4},
                      .operators = {{.name = "matrix products",
                                     .forward_seconds = {0.1, 0.2, 0.1},
                                     .backward_seconds = {0.1, 0.2, 0.1},
                                     .forward_flops = 33e9,
                                     .backward_flops = 66e9},
                                    {.name = "norms",
                                     .forward_seconds = {0.04, 0.08, 0.04},
                                     .backward_seconds = {0.06, 0.12, 0.06},
                                     .forward_flops = 0.4e9,
                                     .backward_flops = 0.6e9},
                                    {.name = "other",
                                     .forward_seconds = {0.0, 0.0, 0.0},
                                     .backward_seconds = {0.02, 0.04, 0.02}}}};
  profile.add_rest();
  return profile;
}

TEST(StepProfile, WhatNoOperatorTookIsOther) {
  const StepProfile profile = example();
  EXPECT_NEAR(profile.operators.back().forward_seconds[0], 0.08, 1e-12);
  EXPECT_NEAR(profile.operators.back().forward_seconds[1], 0.16, 1e-12);
}

TEST(StepProfile, QuartilesAreInterpolated) {
  const Quartiles q = quartiles_of({4, 1, 2, 3});
  EXPECT_NEAR(q.q1, 1.75, 1e-12);
  EXPECT_NEAR(q.median, 2.5, 1e-12);
  EXPECT_NEAR(q.q3, 3.25, 1e-12);
}

TEST(StepProfile, ItsFileHasSharesAndRatesAndAnswersAClaim) {
  const auto json = to_json(example());
  EXPECT_EQ(json["rounds"], 3);
  EXPECT_NEAR(json["gflop"].get<double>(), 100.0, 1e-9);
  const auto& norms = json["results"][1];
  EXPECT_NEAR(norms["time_share"]["median"].get<double>(), 0.25, 1e-12);
  EXPECT_NEAR(norms["flop_share"].get<double>(), 0.01, 1e-12);
  EXPECT_NEAR(norms["gflop_per_second"].get<double>(), 10.0, 1e-9);
  EXPECT_FALSE(json["results"][2].contains("gflop_per_second"));
  const Evidence evidence = read_evidence(
      json, {.variant = "norms", .level = 1.0, .value = "time_over_flop_share"}, "profile.json");
  EXPECT_NEAR(evidence.test.mean, 24.0, 1e-9);
  EXPECT_EQ(evidence.test.pairs, 3);
  EXPECT_TRUE(evidence.is_benchmark());
}

TEST(StepProfile, ItsTableHasARowAnOperator) {
  const std::string table = profile_table(example(), 100);
  EXPECT_THAT(table, HasSubstr("matrix products"));
  EXPECT_THAT(table, HasSubstr("25.00 %"));
  EXPECT_THAT(table, HasSubstr("1.00 %"));
  EXPECT_THAT(table, HasSubstr("tiny: a step of 512 tokens takes 400.0 ms"));
}

class SavedProfile : public ::testing::Test {
 protected:
  void SetUp() override { make_folders(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / fmt::format("fovea-profile-{}", ::getpid());
};

TEST_F(SavedProfile, IsAFileAndAPictureThatStandsAlone) {
  EXPECT_EQ(save_profile(example(), folder_), "");
  EXPECT_EQ(nlohmann::json::parse(read_file(folder_ / "profile.json"))["tokens"], 512);
  const std::string svg = read_file(folder_ / "profile.svg");
  EXPECT_THAT(svg, HasSubstr("xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_THAT(svg, HasSubstr("25.0 % of the time"));
  EXPECT_THAT(svg, HasSubstr("1.00 % of the FLOPs"));
  EXPECT_THAT(svg, HasSubstr("--series-1: "));
}

TEST_F(SavedProfile, SaysWhyThereIsNoPicture) {
  EXPECT_THAT(save_profile(example(), folder_, {.program = "no-such-gnuplot"}),
              HasSubstr("no-such-gnuplot"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "profile.json"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "profile.svg"));
}

}  // namespace
}  // namespace fovea::step_profile_test
