// fovea checkpoint on a run, and what training does about damage and SIGTERM.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace fovea::testing::checkpoint_verb_test {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

const std::string kBinary = FOVEA_BINARY_DIR "/bin/fovea";

class CheckpointVerb : public ::testing::Test {
 protected:
  CheckpointVerb() {
    std::string text;
    for (int i = 0; i < 500; ++i) text += "line " + std::to_string(i) + " of a text\n";
    spill(folder_ / "text.txt", text);
    setenv("FOVEA_CACHE", (folder_ / "cache").c_str(), 1);
    spill(folder_ / "recipe.yaml",
          "name: tiny\ndata: {sources: [{path: text.txt}]}\n"
          "model: {layers: 1, width: 16, heads: 2, ffn_width: 32, context: 32}\n"
          "train: {steps: 6, batch_rows: 2, evaluation_interval: 0, evaluation_tokens: 256,\n"
          "        checkpoint_interval: 2, keep_checkpoints: 3, log_interval: 1, dtype: float32,\n"
          "        device: cpu}\n");
  }
  Finished run(const std::vector<std::string>& arguments) {
    return Program(folder_.path(), kBinary, arguments).finish();
  }
  fs::path checkpoint(const char* step) const { return folder_ / "runs/tiny/checkpoints" / step; }
  static void flip_a_bit(const fs::path& file) {
    std::string bytes = slurp(file);
    bytes[bytes.size() / 2] ^= 16;
    spill(file, bytes);
  }
  TemporaryFolder folder_;
};

TEST_F(CheckpointVerb, ListsVerifiesAveragesAndPrunes) {
  ASSERT_EQ(run({"train", "recipe.yaml", "--quiet"}).code, 0);
  const auto listed = nlohmann::json::parse(run({"checkpoint", "list", "runs/tiny", "--json"}).out);
  ASSERT_EQ(listed.size(), 3U);
  EXPECT_EQ(listed[2]["step"], 6);
  EXPECT_EQ(listed[2]["tokens"], 6 * 2 * 32);
  EXPECT_GT(listed[2]["bytes"].get<int>(), 10000);
  EXPECT_THAT(run({"checkpoint", "list", "runs/tiny"}).out, HasSubstr("0000000006"));
  EXPECT_EQ(run({"checkpoint", "verify", "runs/tiny"}).code, 0);

  const Finished mean = run({"checkpoint", "average", "runs/tiny", "--last", "2", "--out", "mean"});
  ASSERT_EQ(mean.code, 0) << mean.err;
  EXPECT_THAT(mean.out, HasSubstr("mean of 2 models"));
  EXPECT_EQ(run({"eval", "mean", "--text", "text.txt", "--quiet"}).code, 0);
  EXPECT_EQ(run({"checkpoint", "average", "runs/tiny", "--out", "mean"}).code, 2);

  flip_a_bit(checkpoint("0000000006") / "optimizer.safetensors");
  const Finished verified = run({"checkpoint", "verify", "runs/tiny"});
  EXPECT_EQ(verified.code, 2);
  EXPECT_THAT(verified.err, HasSubstr("0000000006"));
  EXPECT_THAT(verified.err, HasSubstr("optimizer.safetensors"));
  EXPECT_EQ(run({"checkpoint", "verify", checkpoint("0000000004").string()}).code, 0);

  const Finished refused = run({"checkpoint", "prune", "runs/tiny", "--keep", "1"});
  EXPECT_EQ(refused.code, 2) << "the only whole checkpoints would go";
  EXPECT_THAT(refused.err, HasSubstr("nothing was removed"));
  const Finished pruned = run({"checkpoint", "prune", "runs/tiny", "--keep", "2"});
  EXPECT_EQ(pruned.code, 0) << pruned.err;
  EXPECT_FALSE(fs::exists(checkpoint("0000000002")));
  EXPECT_TRUE(fs::exists(checkpoint("0000000004")));

  const Finished again = run({"train", "recipe.yaml"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("optimizer.safetensors"));
  EXPECT_THAT(again.err, HasSubstr("falling back to the checkpoint of step 4"));
  EXPECT_EQ(run({"checkpoint", "verify", "runs/tiny"}).code, 0);
}

// A cluster ends a job with SIGTERM and starts it again: saved work is success.
TEST_F(CheckpointVerb, SigtermSavesAndExitsWithZeroAndTheNextRunFinishes) {
  const std::vector<std::string> command{"train", "recipe.yaml", "train.steps=1500",
                                         "train.checkpoint_interval=0"};
  Program program(folder_.path(), kBinary, command);
  const auto metrics = folder_ / "runs/tiny/metrics.jsonl";
  ASSERT_TRUE(program.until([&] { return slurp(metrics).find("\n") != std::string::npos; }));
  program.signal(SIGTERM);
  const Finished stopped = program.finish();
  EXPECT_EQ(stopped.code, 0) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("the same command continues"));
  EXPECT_EQ(run({"checkpoint", "verify", "runs/tiny"}).code, 0);
  const Finished finished = run(command);
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_THAT(finished.err, HasSubstr("continuing"));
  EXPECT_THAT(finished.out, HasSubstr("1500 steps"));
}

}  // namespace
}  // namespace fovea::testing::checkpoint_verb_test
