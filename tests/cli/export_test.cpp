// `fovea export` as a process.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "fovea/checkpoint/families.h"
#include "fovea/checkpoint/model_folder.h"
#include "tests/cli/piped_program.h"
#include "tests/support/tiny_model.h"

namespace fovea::testing::export_test {
namespace {

const std::string kProgram = FOVEA_BINARY_DIR "/bin/fovea";

TEST(ExportVerb, FoldsATemperatureWritesShardsAndOverwritesNothing) {
  const TemporaryFolder folder;
  ModelConfig config = tiny_config();
  config.attention.spec.temperature.value = 0.4;
  save_model(folder / "model", Transformer(config, 1), *byte_tokenizer());
  const std::string out = (folder / "out").string();
  const auto run = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"export", (folder / "model").string(), out});
    return run_piped(kProgram, options);
  };
  const PipedResult plain = run({});
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_NE(plain.out.find("attention.temperature.value"), std::string::npos) << plain.out;
  EXPECT_NE(plain.out.find("--fold"), std::string::npos);
  EXPECT_EQ(load_model_config(out), config);
  const PipedResult again = run({"--fold"});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_NE(again.err.find("not there yet"), std::string::npos);
  std::filesystem::remove_all(out);
  const PipedResult folded = run({"--fold", "--shard", "0.00001", "--json"});
  EXPECT_EQ(folded.exit_code, 0) << folded.err;
  EXPECT_EQ(nlohmann::json::parse(folded.out)["model_type"], "llama");
  EXPECT_TRUE(not_in_hugging_face(load_model(out).config).empty());
  EXPECT_TRUE(std::filesystem::exists(out + "/model.safetensors.index.json"));
}

}  // namespace
}  // namespace fovea::testing::export_test
