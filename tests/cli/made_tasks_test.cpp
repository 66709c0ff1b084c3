// fovea eval --tasks with made questions: maps of depth and length, the same bytes again, bad
// lengths.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "fovea/base/files.h"
#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace fovea::testing::made_tasks_test {
namespace {

using ::testing::HasSubstr;

class MadeTasksVerb : public ::testing::Test {
 protected:
  MadeTasksVerb() {
    setenv("FOVEA_CACHE", (folder_ / "cache").c_str(), 1);
    std::string text;
    for (int i = 0; i < 500; ++i) text += "a line of text, number " + std::to_string(i) + "\n";
    spill(folder_ / "text.txt", text);
    spill(folder_ / "recipe.yaml",
          "name: tiny\ndata: {sources: [{path: text.txt}]}\n"
          "model: {layers: 1, width: 16, heads: 2, ffn_width: 32, context: 1024}\n"
          "train: {steps: 1, batch_rows: 1, log_interval: 1, dtype: float32, device: cpu}\n");
    const Finished train = run({"train", "recipe.yaml", "--quiet"});
    EXPECT_EQ(train.code, 0) << train.err;
  }
  Finished run(const std::vector<std::string>& arguments) {
    return Program(folder_.path(), FOVEA_BINARY_DIR "/bin/fovea", arguments, "").finish();
  }
  Finished eval(std::vector<std::string> more) {
    std::vector<std::string> arguments{"eval", "runs/tiny", "--quiet", "--tasks"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }

  TemporaryFolder folder_;
};

TEST_F(MadeTasksVerb, ShowsScoresByDepthAndLengthAndTheSameSeedGivesTheSameQuestions) {
  const std::vector<std::string> command{"induction,multi_needle_2", "--lengths", "500,900",
                                         "--limit", "6"};
  std::vector<std::string> with_out = command;
  with_out.insert(with_out.end(), {"--out", "out"});
  const Finished first = eval(with_out);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("induction: acc, per cent"));
  EXPECT_THAT(first.out, HasSubstr("depth \\ length"));
  EXPECT_THAT(first.out, HasSubstr("10.0 %")) << "what guessing scores";
  const std::string page = read_file(folder_ / "out" / "heat-maps.html");
  EXPECT_THAT(page, HasSubstr("multi_needle_2: first_number"));
  const std::string log = read_file(folder_ / "out" / "results" / "induction.jsonl");
  with_out.back() = "again";
  ASSERT_EQ(eval(with_out).code, 0);
  EXPECT_EQ(read_file(folder_ / "again" / "results" / "induction.jsonl"), log);
}

TEST_F(MadeTasksVerb, HidesThingsInTheBackgroundThatIsNamed) {
  const Finished done = eval(
      {"multi_needle_2", "--lengths", "600", "--limit", "2", "--background", "text.txt", "--json"});
  ASSERT_EQ(done.code, 0) << done.err;
  const auto result = nlohmann::json::parse(done.out);
  EXPECT_EQ(result["tasks"][0]["cells"][0]["axes"]["length"], 600);
  const Finished missing =
      eval({"multi_needle_2", "--lengths", "600", "--background", "nowhere.txt"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr("nowhere.txt"));
}

TEST_F(MadeTasksVerb, RefusesLengthsWithoutRoomAndTasksWithoutTheirData) {
  const Finished small = eval({"niah_single_1", "--lengths", "900,100"});
  EXPECT_EQ(small.code, 2);
  EXPECT_THAT(small.err, HasSubstr("niah_single_1"));
  EXPECT_THAT(small.err, HasSubstr("100"));
  const Finished zero = eval({"niah_single_1", "--lengths", "0"});
  EXPECT_EQ(zero.code, 2);
  EXPECT_THAT(zero.err, HasSubstr("1 to"));
  const Finished data = eval({"icl_banking77"});
  EXPECT_EQ(data.code, 2);
  EXPECT_THAT(data.err, HasSubstr("--data"));
  const Finished unknown = eval({"niah_singel_1"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("niah_single_1"));
}

}  // namespace
}  // namespace fovea::testing::made_tasks_test
