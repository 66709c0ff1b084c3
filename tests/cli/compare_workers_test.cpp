// A comparison whose runs train side by side in worker processes: the numbers of one thread, a
// worker that dies, Ctrl-C, and going on.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace fovea::testing::compare_workers_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class CompareWorkers : public ::testing::Test {
 protected:
  CompareWorkers() {
    setenv("FOVEA_CACHE", (folder_ / "cache").c_str(), 1);
    spill(folder_ / "text.txt", numbered_lines());
    spill(folder_ / "recipe.yaml",
          "name: tiny\ndata: {sources: [{path: text.txt}]}\n"
          "model: {layers: 1, width: 16, heads: 2, ffn_width: 32, context: 32}\n"
          "train: {steps: 40, batch_rows: 2, evaluation_interval: 20, evaluation_tokens: 256,\n"
          "        checkpoint_interval: 0, log_interval: 1, dtype: float32, device: cpu}\n"
          "compare:\n  seeds: [0, 1]\n  baselines: [bigram]\n"
          "  sample: {prompt: 'line ', tokens: 4}\n  map: {text: 'line 1', tokens: 6}\n"
          "  variants:\n    - name: standard\n"
          "    - name: focal\n      set: {model.attention.temperature.value: 0.4}\n");
  }
  static std::vector<std::string> command(const std::string& name, int workers,
                                          const std::string& more = "train.steps=40") {
    return {"compare", "recipe.yaml", "run_folder=" + name,
            "compare.workers=" + std::to_string(workers), more};
  }
  Finished run(const std::vector<std::string>& arguments) {
    return Program(folder_.path(), kBinary, arguments).finish();
  }
  nlohmann::json result(const std::string& name) const {
    return nlohmann::json::parse(slurp(folder_ / (name + "/compare.json")));
  }
  /// What does not depend on the clock.
  std::vector<nlohmann::json> numbers(const std::string& name) const {
    std::vector<nlohmann::json> values;
    for (const auto& variant : result(name)["variants"]) {
      values.push_back(variant["sample"]);
      values.push_back(variant["attention_maps"]);
      for (const auto& one : variant["runs"]) {
        for (const char* key : {"seed", "validation_bits_per_byte", "tokens", "validation_curve"})
          values.push_back(one[key]);
        for (const auto& point : one["curve"]) values.push_back(point["train_loss"]);
      }
    }
    return values;
  }
  /// Waits until two workers train.
  bool two_at_work(Program& program) const {
    return program.until([&] {
      int begun = 0;
      for (const auto& entry : std::filesystem::recursive_directory_iterator(
               folder_.path(), std::filesystem::directory_options::skip_permission_denied))
        begun += entry.path().filename() == "metrics.jsonl" && entry.file_size() > 0 ? 1 : 0;
      return program.children().size() == 2 && begun >= 2;
    });
  }

  static inline const std::string kBinary = FOVEA_BINARY_DIR "/bin/fovea";
  TemporaryFolder folder_;
};

TEST_F(CompareWorkers, TwoWorkersGiveTheResultsOfOneThread) {
  const Finished one = run(command("one", 1)), two = run(command("two", 2));
  ASSERT_EQ(one.code, 0) << one.err;
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(numbers("one"), numbers("two"));
  for (const char* run : {"standard, seed 0 (1 of 4): ", "focal, seed 1 (4 of 4): "})
    EXPECT_THAT(two.err, HasSubstr(run));
  for (const auto& variant : result("two")["variants"]) {  // measured alone: one number a variant
    EXPECT_GT(variant["runs"][0]["tokens_per_second"], 0.0);
    EXPECT_EQ(variant["runs"][0]["tokens_per_second"], variant["runs"][1]["tokens_per_second"]);
  }
  const Finished again = run(command("two", 2));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(numbers("one"), numbers("two"));
}

TEST_F(CompareWorkers, AWorkerThatDiesIsNamedAndStartedAgain) {
  const std::string longer = "train.steps=1500";
  Program program(folder_.path(), kBinary, command("killed", 2, longer));
  ASSERT_TRUE(two_at_work(program));
  kill(program.children().front(), SIGKILL);
  const Finished killed = program.finish();
  ASSERT_EQ(killed.code, 0) << killed.err;
  EXPECT_THAT(killed.err, HasSubstr("seed 0' died (killed by signal 9); it is started again"));
  ASSERT_EQ(run(command("whole", 2, longer)).code, 0);
  EXPECT_EQ(numbers("killed"), numbers("whole"));
}

TEST_F(CompareWorkers, AnInterruptEndsAllWorkersAndTheSameCommandGoesOn) {
  const std::string longer = "train.steps=1500";
  Program program(folder_.path(), kBinary, command("parts", 2, longer));
  ASSERT_TRUE(two_at_work(program));
  const std::vector<pid_t> workers = program.children();
  program.signal(SIGINT);
  const Finished stopped = program.finish();
  EXPECT_EQ(stopped.code, 130) << stopped.err;
  EXPECT_THAT(stopped.err, AllOf(HasSubstr("0 of 4 runs done"), Not(HasSubstr("died"))));
  for (const pid_t worker : workers) EXPECT_NE(kill(worker, 0), 0);
  const Finished resumed = run(command("parts", 2, longer));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  ASSERT_EQ(run(command("whole", 2, longer)).code, 0);
  EXPECT_EQ(numbers("parts"), numbers("whole"));
}

TEST_F(CompareWorkers, WorkersEndWithAKilledComparison) {
  Program program(folder_.path(), kBinary, command("gone", 2, "train.steps=100000"));
  ASSERT_TRUE(two_at_work(program));
  const std::vector<pid_t> workers = program.children();
  program.signal(SIGKILL);
  program.finish();
  for (const pid_t worker : workers)
    while (slurp(fmt::format("/proc/{}/stat", worker)).find(") R") != std::string::npos ||
           slurp(fmt::format("/proc/{}/stat", worker)).find(") S") != std::string::npos)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

TEST_F(CompareWorkers, WorkersThatAreNoNumberAreRefused) {
  const Finished refused = run({"compare", "recipe.yaml", "compare.workers=many"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("'compare.workers' must be auto or a number"));
}

}  // namespace
}  // namespace fovea::testing::compare_workers_test
