// GPUs as the driver tells them, by a driver that is not there (tests/support/fake_driver.cpp).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace fovea::testing::gpu_list_test {
namespace {

TEST(GpuList, TheDriversGpusAreNamedAndTrainingSaysWhyItTakesNone) {
  const TemporaryFolder folder;
  const char* const before = getenv("LD_LIBRARY_PATH");
  const std::string kept = before != nullptr ? before : "";
  setenv("LD_LIBRARY_PATH", FOVEA_BINARY_DIR "/fake_driver", 1);
  const std::string binary = FOVEA_BINARY_DIR "/bin/fovea";
  const Finished info = Program(folder.path(), binary, {"info", "--json"}).finish();
  spill(folder / "text.txt", numbered_lines());
  spill(folder / "recipe.yaml",
        "name: r\ndata: {sources: [{path: " + (folder / "text.txt").string() + "}]}\n");
  const Finished trained =
      Program(folder.path(), binary,
              {"train", (folder / "recipe.yaml").string(),
               "run_folder=" + (folder / "run").string(), "train.device=cuda", "train.steps=1"})
          .finish();
  before != nullptr ? setenv("LD_LIBRARY_PATH", kept.c_str(), 1) : unsetenv("LD_LIBRARY_PATH");
  ASSERT_EQ(info.code, 0) << info.err;
  const auto json = nlohmann::json::parse(info.out);
  ASSERT_EQ(json.at("gpus").size(), 2u) << info.out;
  EXPECT_EQ(json["gpus"][0]["name"], "first");
  EXPECT_EQ(json["gpus"][1]["name"], "second");
  EXPECT_EQ(json["gpus"][1]["memory_bytes"], int64_t{2} << 30);
  EXPECT_NE(json["why_no_gpu"], "");
  EXPECT_EQ(json["why_no_nccl"], json["why_no_gpu"]);
  EXPECT_EQ(trained.code, 2);
  EXPECT_THAT(trained.err, ::testing::HasSubstr("'train.device' is cuda, but "));
}

}  // namespace
}  // namespace fovea::testing::gpu_list_test
