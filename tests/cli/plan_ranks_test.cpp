// `fovea plan --ranks --memory`: what fits, and how fast it is.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace fovea::testing::plan_ranks_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PlanRanks : public ::testing::Test {
 protected:
  PlanRanks() {
    spill(folder_ / "recipe.yaml",
          "name: planned\ndata: {sources: [{path: text.txt}]}\n"
          "model: {layers: 4, width: 256, heads: 4, context: 128, vocab_size: 8192}\n"
          "train: {steps: 10, batch_rows: 64, device: cpu, dtype: float32}\n");
  }
  Finished plan(std::vector<std::string> more) const {
    more.insert(more.begin(), {"plan", "recipe.yaml", "--flops", "1e12"});
    return Program(folder_.path(), FOVEA_BINARY_DIR "/bin/fovea", more).finish();
  }
  TemporaryFolder folder_;
};

TEST_F(PlanRanks, TellsTheMemoryAndTheSpeedOfARank) {
  const Finished table = plan({"--ranks", "4", "--memory", "24G", "--link", "ethernet-10g"});
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("4 ranks"), HasSubstr("fits 24.0 GB"), HasSubstr("yes"),
                               HasSubstr("fewest ranks of 24.0 GB: 1")));
  const Finished json = plan({"--ranks", "4", "--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const auto ranks = nlohmann::json::parse(json.out)["ranks"];
  EXPECT_EQ(ranks["ranks"], 4);
  EXPECT_EQ(ranks["rows_of_a_rank"], 16);
  EXPECT_GT(ranks["speedup"], 1.0);
  EXPECT_LT(ranks["speedup"], 4.0);
}

TEST_F(PlanRanks, MemoryAloneFindsTheFewestRanks) {
  const auto one = nlohmann::json::parse(plan({"--ranks", "1", "--json"}).out)["ranks"];
  const auto less = std::to_string(static_cast<int64_t>(0.8 * one["memory_bytes"].get<double>()));
  const Finished json = plan({"--memory", less, "--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const auto found = nlohmann::json::parse(json.out)["ranks"];
  EXPECT_GT(found["ranks"], 1);
  EXPECT_EQ(found["ranks"], found["memory"]["fewest_ranks"]);
  EXPECT_EQ(found["memory"]["fits"], true);
  const Finished none = plan({"--memory", "1M"});
  ASSERT_EQ(none.code, 0) << none.err;
  EXPECT_THAT(none.out, HasSubstr("no number of ranks fits 1.00 MB"));
}

TEST_F(PlanRanks, SizesAndLinksThatAreNoneAreRefused) {
  for (const char* wrong : {"lots", "24X", "-1G", "0", "1e400G"}) {
    const Finished refused = plan({std::string("--memory=") + wrong});
    EXPECT_EQ(refused.code, 2) << wrong;
    EXPECT_THAT(refused.err, HasSubstr("[--memory] expected bytes, as 24G")) << wrong;
  }
  const Finished link = plan({"--ranks", "2", "--link", "string"});
  EXPECT_EQ(link.code, 2);
  EXPECT_THAT(link.err, HasSubstr("[--link] expected gigabytes a second"));
  const Finished few = plan({"--ranks", "65"});
  EXPECT_EQ(few.code, 2);
  EXPECT_THAT(few.err, HasSubstr("got 64 rows and 65 ranks"));
}

}  // namespace
}  // namespace fovea::testing::plan_ranks_test
