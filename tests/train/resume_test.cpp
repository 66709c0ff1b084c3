// A run that is killed and continued ends with the same bits (design, section 5: determinism).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/checkpoint/run_folder.h"
#include "fovea/report/metrics_log.h"
#include "fovea/train/trainer.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/child.h"
#include "tests/train/tiny_run.h"

extern char** environ;  // NOLINT: POSIX

namespace fovea::testing {

int train_child(const std::vector<std::string>& arguments) {
  const std::filesystem::path root = arguments.at(0);
  Recipe recipe = tiny_recipe(root);
  recipe.run_folder = (root / arguments.at(1)).string();
  const std::string point = arguments.at(2);
  int left = std::stoi(arguments.at(3));
  recipe.train.steps = 30;
  recipe.train.accumulation = 3;
  recipe.train.checkpoint_interval = 5;
  recipe.train.evaluation_interval = 10;
  recipe.model.dropout = 0.1;
  recipe.model.attention.spec.temperature.kind = TemperatureSpec::Kind::learned;
  TrainCallbacks callbacks;
  callbacks.trace = [&](std::string_view at, int64_t) {
    if (at == point && --left == 0) std::raise(SIGKILL);
  };
  Trainer(recipe, callbacks).run();
  return 0;
}

int run_child(const std::string& root, const std::string& run, const std::string& point,
              int count) {
  std::vector<std::string> words = {"/proc/self/exe",     "--train-child", root, run, point,
                                    std::to_string(count)};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  if (posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, argv.data(), environ) != 0) return -1;
  int status = 0;
  waitpid(pid, &status, 0);
  if (WIFSIGNALED(status)) return WTERMSIG(status);
  return WEXITSTATUS(status) == 0 ? 0 : -1;
}

}  // namespace fovea::testing

namespace fovea::resume_test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// Everything of metrics.jsonl but clocks and memory, as text.
std::string stable_metrics(const fs::path& run) {
  std::string out;
  for (const Json& line : read_metrics(run / "metrics.jsonl")) {
    Json kept = Json::object();
    for (const auto& [key, value] : line.items()) {
      if (!key.starts_with("speed/") && !key.starts_with("memory/")) kept[key] = value;
    }
    out += kept.dump() + "\n";
  }
  return out;
}

class Resume : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new testing::TemporaryFolder;
    ASSERT_EQ(testing::run_child(folder_->path().string(), "whole", "", 0), 0);
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  /// Kills a run at every given point in turn, lets it finish, and compares it with the run that
  /// was never killed.
  void expect_same_after_kills(const std::string& name,
                               const std::vector<std::pair<std::string, int>>& kills) {
    for (const auto& [point, count] : kills) {
      ASSERT_EQ(testing::run_child(folder_->path().string(), name, point, count), SIGKILL)
          << point << " " << count << " was never reached";
    }
    ASSERT_EQ(testing::run_child(folder_->path().string(), name, "", 0), 0);
    const fs::path whole = folder_->path() / "whole", killed = folder_->path() / name;
    const std::string last = "checkpoints/0000000030";
    for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
      EXPECT_TRUE(read_file(whole / last / file) == read_file(killed / last / file)) << file;
    }
    EXPECT_EQ(stable_metrics(whole), stable_metrics(killed));
    const Json a = load_checkpoint_state(whole / last), b = load_checkpoint_state(killed / last);
    EXPECT_EQ(a["loader"].dump(), b["loader"].dump());
    EXPECT_EQ(a["run"]["tokens"], b["run"]["tokens"]);
    for (const auto& entry : fs::directory_iterator(killed / "checkpoints")) {
      EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << "a torn checkpoint stayed";
    }
  }
  static testing::TemporaryFolder* folder_;
};
testing::TemporaryFolder* Resume::folder_ = nullptr;

TEST_F(Resume, KilledBetweenStepsAndContinuedIsTheSameRun) {
  expect_same_after_kills("between", {{"updated", 17}});
}

TEST_F(Resume, KilledInTheMiddleOfAccumulationIsTheSameRun) {
  expect_same_after_kills("accumulation",
                          {{"micro_batch", 3 * 12 + 2}, {"micro_batch", 3 * 7 + 1}});
}

TEST_F(Resume, KilledWhileACheckpointIsWrittenIsTheSameRun) {
  expect_same_after_kills("begun", {{"checkpoint_begun", 2}, {"checkpoint_model", 1}});
  expect_same_after_kills("filled", {{"checkpoint_filled", 1}, {"checkpoint_ready", 3}});
}

TEST_F(Resume, KilledAfterACheckpointBeforeOldOnesAreRemovedIsTheSameRun) {
  expect_same_after_kills("written", {{"checkpoint_written", 3}, {"checkpoint_pruned", 1}});
}

TEST_F(Resume, KilledBeforeTheFirstCheckpointIsTheSameRun) {
  expect_same_after_kills("early", {{"recorded", 3}});
}

}  // namespace
}  // namespace fovea::resume_test
