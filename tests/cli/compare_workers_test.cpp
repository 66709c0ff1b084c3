// A comparison whose runs train side by side in worker processes, or in those of a launcher: the
// numbers of one thread, a process that dies, Ctrl-C, and going on.
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
            more,      "--workers",   std::to_string(workers)};
  }
  Finished run(const std::vector<std::string>& arguments) {
    return Program(folder_.path(), kBinary, arguments).finish();
  }
  /// The program behind `before` in a shell: limits and variables.
  Finished run_behind(const std::string& before, const std::string& arguments) {
    const std::string line = fmt::format("{} exec {} {}", before, kBinary, arguments);
    return Program(folder_.path(), "/bin/sh", {"-c", line}).finish();
  }
  nlohmann::json result(const std::string& name) const {
    return nlohmann::json::parse(slurp(folder_ / (name + "/compare.json")));
  }
  std::vector<nlohmann::json> variants(const std::string& name) const {
    return result(name)["variants"];
  }
  /// What does not depend on the clock.
  std::vector<nlohmann::json> numbers(const std::string& name) const {
    std::vector<nlohmann::json> values;
    for (const auto& variant : variants(name)) {
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

  static constexpr const char* kTwoThreads = "export OMP_NUM_THREADS=2;";
  static inline const std::string kBinary = FOVEA_BINARY_DIR "/bin/fovea";
  TemporaryFolder folder_;
};

TEST_F(CompareWorkers, TwoWorkersGiveTheResultsOfOneThread) {
  const Finished one = run(command("one", 1)), two = run(command("two", 2));
  ASSERT_EQ(one.code, 0) << one.err;
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_GT(numbers("one").size(), 4 * 40U);  // four runs of 40 losses
  EXPECT_EQ(numbers("one"), numbers("two"));
  for (const char* run : {"standard, seed 0 (1 of 4): ", "focal, seed 1 (4 of 4): "})
    EXPECT_THAT(two.err, HasSubstr(run));
  for (const auto& variant : variants("two")) {  // measured alone: one number a variant
    EXPECT_GT(variant["runs"][0]["tokens_per_second"], 0.0);
    EXPECT_EQ(variant["runs"][0]["tokens_per_second"], variant["runs"][1]["tokens_per_second"]);
  }
  const Finished again = run(command("two", 2));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(numbers("one"), numbers("two"));
}

TEST_F(CompareWorkers, AWorkerThatDiesIsNamedAndStartedAgain) {
  const std::string longer = "train.steps=700";
  Program program(folder_.path(), kBinary, command("killed", 2, longer));
  ASSERT_TRUE(two_at_work(program)) << program.finish().err;
  kill(program.children().front(), SIGKILL);
  const Finished killed = program.finish();
  ASSERT_EQ(killed.code, 0) << killed.err;
  EXPECT_THAT(killed.err, HasSubstr("' died (killed by signal 9); it is started again"));
  EXPECT_THAT(killed.err, HasSubstr("/worker.log'"));
  ASSERT_EQ(run(command("whole", 2, longer)).code, 0);
  EXPECT_EQ(numbers("killed"), numbers("whole"));
}

TEST_F(CompareWorkers, AnInterruptEndsAllWorkersAndTheSameCommandGoesOn) {
  const std::string longer = "train.steps=700";
  Program program(folder_.path(), kBinary, command("parts", 2, longer));
  ASSERT_TRUE(two_at_work(program)) << program.finish().err;
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
  ASSERT_TRUE(two_at_work(program)) << program.finish().err;
  const std::vector<pid_t> workers = program.children();
  program.signal(SIGKILL);
  program.finish();
  for (const pid_t worker : workers)
    while (slurp(fmt::format("/proc/{}/stat", worker)).find(") R") != std::string::npos ||
           slurp(fmt::format("/proc/{}/stat", worker)).find(") S") != std::string::npos)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

TEST_F(CompareWorkers, AWorkerThatDiesTwiceEndsTheComparisonAndLeavesItsLog) {
  Program program(folder_.path(), kBinary, command("deadly", 2, "train.steps=100000"));
  std::vector<pid_t> workers;
  while (program.running()) {
    for (const pid_t worker : program.children()) {
      workers.push_back(worker);
      kill(worker, SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const Finished dead = program.finish();
  EXPECT_EQ(dead.code, 1);
  EXPECT_THAT(dead.err, AllOf(HasSubstr("' died twice (killed by signal 9)"),
                              HasSubstr("/worker.log'"), HasSubstr("--workers 1")));
  for (const pid_t worker : workers) EXPECT_NE(kill(worker, 0), 0);
  int logs = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / "deadly")) {
    if (entry.path().filename() != "worker.log") continue;
    EXPECT_THAT(slurp(entry.path()), AllOf(HasSubstr("worker 1 (process "), HasSubstr("stderr")));
    ++logs;
  }
  EXPECT_GE(logs, 1);
}

TEST_F(CompareWorkers, AFolderThatCannotBeWrittenIsToldOnceAndNotTriedAgain) {
  std::filesystem::create_directory(folder_ / "blocked");
  spill(folder_ / "blocked/runs", "a file, where a folder should be");
  const Finished blocked = run(command("blocked", 2));
  EXPECT_NE(blocked.code, 0);
  EXPECT_THAT(blocked.err, AllOf(HasSubstr("[compare] in the run '"), HasSubstr("blocked/runs"),
                                 Not(HasSubstr("died"))));
}

TEST_F(CompareWorkers, AFullDiskEndsAllWorkersWithItsReason) {
  ASSERT_EQ(run(command("fits", 2)).code, 0);  // the text's tokens are in the cache then
  constexpr const char* kThirtyTwoKilobytes = "ulimit -f 64;";
  const Finished full =
      run_behind(kThirtyTwoKilobytes, "compare recipe.yaml run_folder=full --workers 2");
  EXPECT_EQ(full.code, 1) << full.err;
  EXPECT_THAT(full.err, AllOf(HasSubstr("[compare] in the run '"), HasSubstr("File too large"),
                              Not(HasSubstr("died"))));
}

TEST_F(CompareWorkers, AutoTakesAsManyWorkersAsThreads) {
  const Finished two = run_behind(kTwoThreads, "compare recipe.yaml run_folder=two --workers auto");
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_THAT(two.err, HasSubstr("4 runs, 2 at a time, one thread each (compare.workers: auto)"));
  EXPECT_THAT(two.out, HasSubstr("2 runs trained at a time; tokens/s: each variant alone"));
  EXPECT_EQ(result("two")["workers"], 2);
  const Finished one = run({"compare", "recipe.yaml", "run_folder=one"});  // one thread
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.err, HasSubstr("4 runs, one after the other, one thread"));
  EXPECT_EQ(numbers("one"), numbers("two"));
}

TEST_F(CompareWorkers, APlanTellsHowManyRunsTrainAtATime) {
  const Finished two = run_behind(kTwoThreads, "plan recipe.yaml --flops 1e9");
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_THAT(two.out, HasSubstr("4 runs, 2 at a time, one thread each (compare.workers: auto)"));
  const Finished one = run({"plan", "recipe.yaml", "--flops", "1e9", "--json"});
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(
      nlohmann::json::parse(one.out)["comparison"],
      nlohmann::json(
          {{"runs", 4}, {"workers", 1}, {"threads", 1}, {"reason", "the program has one thread"}}));
}

TEST_F(CompareWorkers, WorkersAnswerTheTasksAsOneProcessDoes) {
  spill(folder_ / "q.jsonl",
        "{\"q\": \"ab\", \"a\": [\"c\", \"d\"], \"gold\": 0}\n"
        "{\"q\": \"li\", \"a\": [\"ne\", \"xx\"], \"gold\": 0}\n");
  spill(folder_ / "letters.yaml",
        "name: letters\ntitle: two letters\ndata: [q.jsonl]\nheadline: acc\nforms:\n"
        "  - context: \"{{q}}\"\n    choices: a\n    gold: gold\n");
  const std::string tasks = "compare.tasks={names: [letters.yaml], data: .}";
  const auto answers = [&](const std::string& name) {
    std::vector<nlohmann::json> values;
    for (const auto& variant : variants(name))
      for (const auto& one : variant["runs"]) values.push_back(one["tasks"]);
    return values;
  };
  const Finished one = run(command("one", 1, tasks)), two = run(command("two", 2, tasks));
  ASSERT_EQ(one.code, 0) << one.err;
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(answers("one"), answers("two"));
  ASSERT_EQ(answers("two").size(), 4U);
  EXPECT_EQ(answers("two")[3].size(), 1U);
}

/// The environment of torchrun with two processes.
class CompareRanks : public CompareWorkers {
 protected:
  CompareRanks() {
    for (const auto& [name, value] : kVariables) setenv(name, value, 1);
  }
  ~CompareRanks() override {
    for (const auto& [name, value] : kVariables) unsetenv(name);
    unsetenv("RANK");
  }
  Program start(int rank, const std::string& name, const std::string& more = "train.steps=40",
                const std::string& last = "compare.workers=auto") const {
    const auto own = folder_ / ("rank" + std::to_string(rank));
    std::filesystem::create_directories(own);
    setenv("RANK", std::to_string(rank).c_str(), 1);
    return {own,
            kBinary,
            {"compare", (folder_ / "recipe.yaml").string(),
             "data.sources.0.path=" + (folder_ / "text.txt").string(),
             "run_folder=" + (folder_ / name).string(), more, last}};
  }
  void train_alone(const std::string& name, const std::string& more) const {
    for (const auto& [variable, value] : kVariables) unsetenv(variable);
    unsetenv("RANK");
    ASSERT_EQ(start_alone(name, more).code, 0);
  }

 private:
  Finished start_alone(const std::string& name, const std::string& more) const {
    return Program(
               folder_.path(), kBinary,
               {"compare", "recipe.yaml", "data.sources.0.path=" + (folder_ / "text.txt").string(),
                "run_folder=" + name, more, "--workers=1"})
        .finish();
  }
  static constexpr std::pair<const char*, const char*> kVariables[] = {{"WORLD_SIZE", "2"},
                                                                       {"LOCAL_WORLD_SIZE", "2"},
                                                                       {"MASTER_ADDR", "127.0.0.1"},
                                                                       {"MASTER_PORT", "29599"}};
};

TEST_F(CompareRanks, ProcessesOfALauncherShareTheRunsAndTheFirstWritesTheTable) {
  Program first = start(0, "two"), second = start(1, "two");
  const Finished told = first.finish(), silent = second.finish();
  ASSERT_EQ(told.code, 0) << told.err;
  ASSERT_EQ(silent.code, 0) << silent.err;
  EXPECT_THAT(told.err, HasSubstr("4 runs, shared by 2 processes"));
  EXPECT_EQ(silent.out + silent.err, "");
  EXPECT_EQ(result("two")["workers"], 2);
  train_alone("one", "train.steps=40");
  EXPECT_EQ(numbers("one"), numbers("two"));
}

TEST_F(CompareRanks, TheRunsOfAProcessThatDiesAreTrainedByAnother) {
  const std::string longer = "train.steps=300";
  Program first = start(0, "left", longer), second = start(1, "left", longer);
  ASSERT_TRUE(second.until([&] {  // both have begun a run
    int begun = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(
             folder_.path(), std::filesystem::directory_options::skip_permission_denied))
      begun += entry.path().filename() == "metrics.jsonl" && entry.file_size() > 0 ? 1 : 0;
    return begun >= 2;
  })) << second.finish().err;
  second.signal(SIGKILL);
  second.finish();
  const Finished told = first.finish();
  ASSERT_EQ(told.code, 0) << told.err;
  train_alone("one", longer);
  EXPECT_EQ(numbers("one"), numbers("left"));
}

TEST_F(CompareRanks, TuningChoosesTheValuesThatOneProcessChooses) {
  const std::string tuned =
      "compare.tuning={key: train.optimizer.learning_rate, values: [0.001, 0.003, 0.01], seed: 7}";
  Program first = start(0, "two", tuned), second = start(1, "two", tuned);
  const Finished told = first.finish(), silent = second.finish();
  ASSERT_EQ(told.code, 0) << told.err;
  ASSERT_EQ(silent.code, 0) << silent.err;
  train_alone("one", tuned);
  EXPECT_EQ(result("one")["tuning"], result("two")["tuning"]);
  EXPECT_EQ(numbers("one"), numbers("two"));
}

TEST_F(CompareRanks, WorkersBesideALauncherAreRefused) {
  const Finished both = start(0, "both", "train.steps=40", "compare.workers=2").finish();
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.err, HasSubstr("expected --workers or a launcher; got both: torchrun"));
}

TEST_F(CompareWorkers, WorkersThatAreNoNumberAreRefused) {
  for (const char* wrong : {"many", "0", "-1", "2 3", "1.5"}) {
    const Finished refused = run({"compare", "recipe.yaml", std::string("--workers=") + wrong});
    EXPECT_EQ(refused.code, 2) << wrong;
    EXPECT_THAT(refused.err, HasSubstr("'compare.workers' must be auto or a number")) << wrong;
  }
}

}  // namespace
}  // namespace fovea::testing::compare_workers_test
