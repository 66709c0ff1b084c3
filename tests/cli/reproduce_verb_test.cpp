// fovea reproduce as a user meets it: the list, one table, a twin with the paper's number beside.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace fovea::testing::reproduce_verb_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kBinary = FOVEA_BINARY_DIR "/bin/fovea";

class Reproduce : public ::testing::Test {
 protected:
  Finished run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "reproduce");
    return Program(folder_.path(), kBinary, arguments).finish();
  }
  TemporaryFolder folder_;
};

TEST_F(Reproduce, ListsEveryClaimWithItsVerdict) {
  const Finished done = run({"--results", FOVEA_SOURCE_DIR});
  EXPECT_EQ(done.code, 0) << done.err;
  for (const char* id :
       {"focal/fig-8a", "focus/table-6/1M", "mta/table-5/gate", "lecture/3.2/z-loss"})
    EXPECT_THAT(done.out, HasSubstr(id));
  EXPECT_THAT(done.out, HasSubstr("reproduced"));
  const auto list = nlohmann::json::parse(run({"--results", FOVEA_SOURCE_DIR, "--json"}).out);
  EXPECT_GE(list.size(), 100u);
}

TEST_F(Reproduce, ShowsTheClaimsOfATableAndRunsNothing) {
  const Finished done = run({"--results", FOVEA_SOURCE_DIR, "--show", "mta/table-1"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("mta/table-1/first"));
  EXPECT_THAT(done.out, HasSubstr("fovea compare recipes/laptop/find-block.yaml"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "runs"));
}

TEST_F(Reproduce, RunsATwinAndPrintsThePaperBesideIt) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i) + " of a text\n";
  spill(folder_ / "text.txt", text);
  setenv("FOVEA_CACHE", (folder_ / "cache").c_str(), 1);
  const std::vector<std::string> twin{"focal/fig-3/tokens",
                                      "--quiet",
                                      "--set",
                                      "data.sources.0.path=text.txt",
                                      "--set",
                                      "train.steps=2",
                                      "--set",
                                      "train.batch_rows=1",
                                      "--set",
                                      "train.evaluation_tokens=256",
                                      "--set",
                                      "compare.seeds=[0,1]",
                                      "--set",
                                      "compare.sample.tokens=0",
                                      "--set",
                                      "compare.map.tokens=0"};
  const Finished done = run(twin);
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("ours, this run"));
  EXPECT_THAT(done.out, HasSubstr("33 % less"));
  EXPECT_THAT(done.out, HasSubstr("2 seeds"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "runs/demo/compare.json"));
}

TEST_F(Reproduce, WhatATwinNeedsIsNamed) {
  const Finished unknown = run({"mta/tabel-8"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("mta/table-8"));
  const Finished model = run({"focal/table-2/ramp"});
  EXPECT_EQ(model.code, 2);
  EXPECT_THAT(model.err, HasSubstr("--model"));
  spill(folder_ / "text.txt", "a text");
  const Finished data = run({"focus/table-1/lambada", "--model", "nowhere", "--text", "text.txt"});
  EXPECT_EQ(data.code, 2);
  EXPECT_THAT(data.err, HasSubstr("--data")) << "before the first of its commands runs";
  EXPECT_FALSE(std::filesystem::exists(folder_ / "runs"));
  const Finished none = run({"focal/fig-9"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("no small twin"));
}

}  // namespace
}  // namespace fovea::testing::reproduce_verb_test
