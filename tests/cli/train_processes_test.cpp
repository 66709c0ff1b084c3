// Training on several processes: the steps of one, a process that is killed, Ctrl-C, launchers.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>

#include "fovea/report/metrics_log.h"
#include "fovea/runtime/machine.h"
#include "tests/cli/free_port.h"
#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace fovea::testing::train_processes_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Whether a process runs; the dead that nobody has waited for have no command line.
bool runs(pid_t process) { return !slurp(fmt::format("/proc/{}/cmdline", process)).empty(); }

class TrainProcesses : public ::testing::Test {
 protected:
  TrainProcesses() {
    setenv("FOVEA_CACHE", (folder_ / "cache").c_str(), 1);
    spill(folder_ / "text.txt", numbered_lines());
    spill(folder_ / "recipe.yaml",
          "name: tiny\ndata: {sources: [{path: " + (folder_ / "text.txt").string() +
              "}]}\n"
              "model: {layers: 2, width: 16, heads: 2, ffn_width: 32, context: 32}\n"
              "train: {steps: 200, batch_rows: 4, accumulation: 2, evaluation_tokens: 256,\n"
              "        checkpoint_interval: 0, log_interval: 1, dtype: float32, device: cpu,\n"
              "        optimizer: {learning_rate: 0.001}, schedule: {kind: constant, warmup_steps: "
              "0}}\n");
  }
  std::vector<std::string> command(const std::string& run, int64_t processes,
                                   const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{"train", (folder_ / "recipe.yaml").string(),
                                 "run_folder=" + (folder_ / run).string()};
    all.insert(all.end(), more.begin(), more.end());
    if (processes > 1) all.push_back("--processes=" + std::to_string(processes));
    return all;
  }
  Finished train(const std::string& run, int64_t processes,
                 const std::vector<std::string>& more = {}) {
    return Program(folder_.path(), kBinary, command(run, processes, more)).finish();
  }
  std::vector<double> losses(const std::string& run) const {
    std::vector<double> all;
    for (const auto& line : read_metrics(folder_ / (run + "/metrics.jsonl")))
      all.push_back(line.at("loss/out").get<double>());
    return all;
  }
  bool has_losses(const std::string& run) const {
    return std::filesystem::exists(folder_ / (run + "/metrics.jsonl")) && !losses(run).empty();
  }
  void expect_same_losses(const std::string& one, const std::string& other,
                          double bound = 1e-6) const {
    const std::vector<double> a = losses(one), b = losses(other);
    ASSERT_EQ(a.size(), b.size()) << one << ", " << other;
    for (size_t n = 0; n < a.size(); ++n)
      ASSERT_NEAR(a[n], b[n], bound * a[n]) << one << ", " << other << ", step " << n + 1;
  }
  /// The largest difference of the losses of two runs, as a share of them.
  double farthest(const std::string& one, const std::string& other) const {
    const std::vector<double> a = losses(one), b = losses(other);
    double most = 0.0;
    for (size_t n = 0; n < std::min(a.size(), b.size()); ++n)
      most = std::max(most, std::abs(a[n] - b[n]) / a[n]);
    return most;
  }
  bool has_checkpoint(const std::string& run) const {
    std::error_code none;
    for (const auto& entry :
         std::filesystem::directory_iterator(folder_ / (run + "/checkpoints"), none))
      if (!entry.path().filename().string().starts_with('.')) return true;
    return false;
  }

  static inline const std::string kBinary = FOVEA_BINARY_DIR "/bin/fovea";
  TemporaryFolder folder_;
};

TEST_F(TrainProcesses, TheLossesOfSeveralProcessesAreThoseOfOne) {
  struct Case {
    std::string name, attention;
    std::vector<int64_t> processes;
    int64_t steps;
  };
  // Focus with Sinkhorn enlarges a difference of one rounding a thousandfold in 100 steps, in one
  // process too (docs/scaling-out.md): its first steps are compared.
  const Case cases[] = {
      {"standard", "{}", {2, 4}, 200},
      {"temperature", "{temperature: {kind: learned}}", {2, 4}, 200},
      {"multi-token",
       "{multi_token: {before: {queries: 2, keys: 3}}, head_mix: {before: full}}",
       {2, 4},
       200},
      {"focus",
       "{focus: {gate: log, groups: 4, top_k: 1, window: 2, sinks: 1, recluster_interval: 10}}",
       {2, 4},
       20},
  };
  for (const Case& model : cases) {
    const auto run = [&](int64_t processes) {
      const std::string name = model.name + std::to_string(processes);
      const Finished end = train(
          name, processes,
          {"model.attention=" + model.attention, "train.steps=" + std::to_string(model.steps)});
      EXPECT_EQ(end.code, 0) << name << ": " << end.err;
      EXPECT_THAT(end.out, HasSubstr("validation: "));
      EXPECT_EQ(std::ssize(losses(name)), model.steps);
      return name;
    };
    const std::string alone = run(1);
    for (const int64_t processes : model.processes) expect_same_losses(alone, run(processes));
  }
}

// Sums of rounded numbers differ in their last bits, of which bfloat16 has 8. That changes losses
// as a learning rate does that is changed by a thousandth of itself, twice at most.
TEST_F(TrainProcesses, InBfloat16TheLossesAreNear) {
  const std::string half = "train.dtype=bfloat16";
  ASSERT_EQ(train("half1", 1, {half}).code, 0);
  double moved = 0.0;
  for (const std::string rate : {"0.000999", "0.001001"}) {
    ASSERT_EQ(train(rate, 1, {half, "train.optimizer.learning_rate=" + rate}).code, 0);
    moved = std::max(moved, farthest("half1", rate));
  }
  EXPECT_LT(moved, 1e-2);
  for (const int64_t processes : {2, 4}) {
    const std::string name = "half" + std::to_string(processes);
    const Finished end = train(name, processes, {half});
    EXPECT_EQ(end.code, 0) << end.err;
    expect_same_losses("half1", name, 2.0 * moved);
  }
}

TEST_F(TrainProcesses, AProfileIsToldByTheFirstAlone) {
  for (const int64_t processes : {1, 2}) {
    const std::string name = "profiled" + std::to_string(processes);
    const Finished end = train(name, processes, {"--profile", "train.steps=16"});
    ASSERT_EQ(end.code, 0) << end.err;
    const size_t at = end.out.find("matrix products");
    EXPECT_NE(at, std::string::npos) << end.out;
    EXPECT_EQ(end.out.find("matrix products", at + 1), std::string::npos);
    const auto profile = nlohmann::json::parse(slurp(folder_ / (name + "/profile.json")));
    EXPECT_EQ(profile["rounds"], 10);
    EXPECT_THAT(slurp(folder_ / (name + "/profile.svg")), HasSubstr("of the FLOPs"));
    EXPECT_EQ(losses(name).size(), 16u);
  }
}

TEST_F(TrainProcesses, AGpuIsAskedForByEachProcess) {
  if (!why_no_gpu().empty()) {
    const Finished end = train("gpus", 2, {"train.device=cuda"});
    EXPECT_EQ(end.code, 2);
    EXPECT_THAT(end.err, HasSubstr("'train.device' is cuda, but " + why_no_gpu()));
  } else if (list_gpus().size() == 1) {  // scripts/gpu-ranks.py has two ranks on one card
    const Finished end = train("gpus", 2, {"train.device=cuda"});
    EXPECT_EQ(end.code, 2);
    EXPECT_THAT(end.err, HasSubstr("no GPU is visible (CUDA_VISIBLE_DEVICES='1')"));
  } else {
    ASSERT_EQ(train("gpu", 1, {"train.device=cuda"}).code, 0);
    const Finished end = train("gpus", 2, {"train.device=cuda"});
    EXPECT_EQ(end.code, 0) << end.err;
    expect_same_losses("gpu", "gpus");
  }
}

TEST_F(TrainProcesses, AKilledProcessEndsAllAndOtherNumbersOfProcessesGoOn) {
  ASSERT_EQ(train("whole", 1).code, 0);
  const std::vector<std::string> saving{"train.checkpoint_interval=20"};
  Program program(folder_.path(), kBinary, command("parts", 4, {"train.steps=100000", saving[0]}));
  ASSERT_TRUE(program.until([&] { return has_checkpoint("parts"); }));
  const std::vector<pid_t> ranks = program.children();
  ASSERT_EQ(ranks.size(), 4u);
  for (const pid_t rank : ranks) EXPECT_EQ(slurp(fmt::format("/proc/{}/comm", rank)), "fovea\n");
  kill(ranks[2], SIGKILL);
  const Finished killed = program.finish();
  EXPECT_EQ(killed.code, 75) << killed.err;
  EXPECT_THAT(killed.err, HasSubstr("rank 2 of 4 (process " + std::to_string(ranks[2]) +
                                    ") was killed by signal 9"));
  for (const pid_t rank : ranks) EXPECT_FALSE(runs(rank));
  const Finished part = train("parts", 2, {"train.steps=120", saving[0]});
  ASSERT_EQ(part.code, 0) << part.err;
  EXPECT_THAT(part.err, HasSubstr("continuing"));
  const Finished rest = train("parts", 3, saving);
  ASSERT_EQ(rest.code, 0) << rest.err;
  expect_same_losses("whole", "parts");
}

TEST_F(TrainProcesses, AnInterruptSavesOnceAndTheSameCommandGoesOn) {
  const std::vector<std::string> longer{"train.steps=100000", "train.checkpoint_interval=20"};
  for (const auto& [signal, code] : {std::pair{SIGINT, 130}, std::pair{SIGTERM, 0}}) {
    const std::string run = "stopped" + std::to_string(signal);
    Program program(folder_.path(), kBinary, command(run, 2, longer));
    ASSERT_TRUE(program.until([&] { return has_checkpoint(run); }));
    program.signal(signal);
    const Finished stopped = program.finish();
    EXPECT_EQ(stopped.code, code) << stopped.err;
    EXPECT_THAT(stopped.err, HasSubstr("everything is saved"));
    EXPECT_THAT(stopped.err, Not(HasSubstr("[ranks]")));
  }
  const Finished again = train("stopped2", 2, {"train.steps=1"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("continuing"));
}

TEST_F(TrainProcesses, TheChildrenEndWithTheirParent) {
  Program program(folder_.path(), kBinary, command("orphans", 2, {"train.steps=100000"}));
  ASSERT_TRUE(program.until([&] { return has_losses("orphans"); }));
  const std::vector<pid_t> ranks = program.children();
  ASSERT_EQ(ranks.size(), 2u);
  program.signal(SIGKILL);
  program.finish();
  for (const pid_t rank : ranks)
    while (runs(rank)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

TEST_F(TrainProcesses, ALaunchersEnvironmentMakesRanks) {
  ASSERT_EQ(train("one", 1, {"train.steps=20"}).code, 0);
  setenv("WORLD_SIZE", "2", 1);
  setenv("LOCAL_WORLD_SIZE", "2", 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(free_port()).c_str(), 1);
  const auto start = [&](int rank, const std::vector<std::string>& arguments) {
    setenv("RANK", std::to_string(rank).c_str(), 1);
    const auto own = folder_ / ("rank" + std::to_string(rank));
    std::filesystem::create_directories(own);
    return Program(own, kBinary, arguments);
  };
  const auto arguments = command("launched", 1, {"train.steps=20"});
  Program first = start(0, arguments), second = start(1, arguments);
  const Finished told = first.finish(), silent = second.finish();
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_EQ(silent.code, 0) << silent.err;
  EXPECT_THAT(told.err, HasSubstr("2 ranks (torchrun)"));
  EXPECT_EQ(silent.out + silent.err, "");
  expect_same_losses("one", "launched");

  Program a = start(0, command("differ", 1, {"train.seed=1"})),
          b = start(1, command("differ", 1, {"train.seed=2"}));
  for (Program* rank : {&a, &b}) {
    const Finished refused = rank->finish();
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, HasSubstr("expected the same recipe on every rank"));
  }
  const Finished both = train("both", 2);
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.err, HasSubstr("expected --processes or a launcher; got both"));
  const Finished evaluation =
      Program(folder_.path(), kBinary, {"eval", (folder_ / "one").string()}).finish();
  EXPECT_EQ(evaluation.code, 2);
  EXPECT_THAT(evaluation.err, HasSubstr("'fovea eval' runs in one process; torchrun"));
  unsetenv("MASTER_PORT");
  const Finished half = train("half", 1);
  EXPECT_EQ(half.code, 2);
  EXPECT_THAT(half.err, HasSubstr("missing: MASTER_PORT"));
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"}) unsetenv(name);
}

TEST_F(TrainProcesses, ARefusalIsToldOnce) {
  const Finished few = train("few", 2, {"train.batch_rows=1"});
  EXPECT_EQ(few.code, 2);
  const std::string words = "at least one row for each of 2 ranks";
  EXPECT_THAT(few.err, HasSubstr(words));
  EXPECT_EQ(few.err.find(words), few.err.rfind(words)) << few.err;
  EXPECT_EQ(train("none", 0, {"--processes=0"}).code, 2);
}

}  // namespace
}  // namespace fovea::testing::train_processes_test
