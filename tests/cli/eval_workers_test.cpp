// `fovea eval --tasks --workers N`: the answers of one thread to the bit, a worker that dies,
// Ctrl-C, and refusals.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "fovea/checkpoint/model_folder.h"
#include "tests/cli/free_port.h"
#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace fovea::testing::eval_workers_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kBinary = FOVEA_BINARY_DIR "/bin/fovea";

/// A random model of 64 positions, and a task of every kind beside it.
class EvalWorkers : public ::testing::Test {
 protected:
  EvalWorkers() {
    ModelConfig config = tiny_config();
    config.context = 64;
    save_model(folder_ / "model", Transformer(config.resolved(config.vocab_size), 1),
               *byte_tokenizer());
    add_task("choices", "context: '{{q}}:'\nchoices: c\ngold: g\n");
    add_task("true", "kind: multiple_true\ncontext: '{{q}}:'\nchoices: c\nlabels: '[1, 0]'\n");
    add_task("contexts", "kind: partial\ncontexts: c\nending: ' {{q}}'\ngold: g\n");
    add_task("word", "kind: last_word\ncontext: '{{q}} and'\nending: ' then'\n");
    add_task("rolling", "kind: rolling\ncontext: '{{q}} is a text'\n");
    add_task("written",
             "kind: generate\ncontext: '{{q}}:'\nreferences: '[q]'\nmax_tokens: 8\n"
             "metrics:\n  - name: exact\n    rule: exact_match\n");
  }
  void add_task(const std::string& name, const std::string& text) const {
    spill(folder_ / (name + ".yaml"), "name: " + name + "\ndata: questions.jsonl\n" + text);
  }
  /// `count` questions of unequal length; every ninth does not fit the context.
  void add_questions(int count) const {
    std::string records;
    for (int n = 0; n < count; ++n)
      records += fmt::format(
          "{{\"q\": \"q{}{}\", \"c\": [\"yes\", \"no, {}\"], \"g\": {}}}\n", n,
          n % 9 == 8 ? std::string(70, 'x') : std::string(static_cast<size_t>(n % 7), '.'), n % 7,
          n % 2);
    spill(folder_ / "questions.jsonl", records);
  }
  static std::vector<std::string> command(const std::string& tasks, const std::string& out,
                                          const std::string& workers) {
    return {"eval", "model", "--tasks", tasks, "--out", out, "--workers", workers};
  }
  Finished run(const std::vector<std::string>& arguments) const {
    return Program(folder_.path(), kBinary, arguments).finish();
  }
  std::string log(const std::string& out, const std::string& task) const {
    return slurp(folder_ / (out + "/results/" + task + ".jsonl"));
  }
  /// Waits until two workers answer.
  bool two_at_work(Program& program, const std::string& out) const {
    return program.until(
        [&] { return program.children().size() == 2 && log(out, "choices").size() > 2000; });
  }
  static constexpr int kMany = 4000;
  TemporaryFolder folder_;
};

TEST_F(EvalWorkers, AnswerEveryKindOfTaskAsOneThreadDoesToTheBit) {
  add_questions(300);  // more than a window of 256
  const std::string tasks =
      "choices.yaml,true.yaml,contexts.yaml,word.yaml,rolling.yaml,written.yaml";
  const Finished one = run(command(tasks, "one", "1")), three = run(command(tasks, "three", "3"));
  ASSERT_EQ(one.code, 0) << one.err;
  ASSERT_EQ(three.code, 0) << three.err;
  EXPECT_THAT(three.err, HasSubstr("3 workers, one thread each"));
  for (const char* task : {"choices", "true", "contexts", "word", "rolling", "written"}) {
    EXPECT_EQ(std::ranges::count(log("three", task), '\n'), 301) << task;
    EXPECT_EQ(log("one", task), log("three", task)) << task;
  }
}

TEST_F(EvalWorkers, RanksOfALauncherAnswerAsOneThreadDoesToTheBit) {
  add_questions(300);
  const std::string tasks = "choices.yaml,contexts.yaml,rolling.yaml,written.yaml";
  const int port = free_port();
  const auto start = [&](int rank, const std::string& more) {
    const auto own = folder_ / fmt::format("rank{}", rank);
    std::filesystem::create_directories(own);
    const std::string line = fmt::format(
        "cd ..; export RANK={} WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "
        "MASTER_PORT={}; exec {} eval model --tasks {} --out ranks {}",
        rank, port, kBinary, tasks, more);
    return Program(own, "/bin/sh", {"-c", line});
  };
  const auto both = [&](const std::string& more) {
    Program first = start(0, more), second = start(1, more);
    return std::pair(first.finish(), second.finish());
  };
  const auto [told, silent] = both("");
  ASSERT_EQ(told.code, 0) << told.err;
  EXPECT_EQ(silent.code, 0) << silent.err;
  EXPECT_THAT(told.err, HasSubstr("2 ranks, one thread each"));
  EXPECT_EQ(silent.out + silent.err, "");
  const Finished one = run(command(tasks, "one", "1"));
  ASSERT_EQ(one.code, 0) << one.err;
  for (const char* task : {"choices", "contexts", "rolling", "written"}) {
    EXPECT_EQ(std::ranges::count(log("ranks", task), '\n'), 301) << task;
    EXPECT_EQ(log("one", task), log("ranks", task)) << task;
  }
  for (const Finished& refused : {both("--workers 2").first, both("--text x").first})
    EXPECT_EQ(refused.code, 2) << refused.err;
}

TEST_F(EvalWorkers, AWorkerThatDiesIsNamedAndItsPartIsAskedAgain) {
  add_questions(kMany);
  Program program(folder_.path(), kBinary, command("choices.yaml", "killed", "2"));
  ASSERT_TRUE(two_at_work(program, "killed")) << program.finish().err;
  const std::vector<pid_t> workers = program.children();
  ASSERT_EQ(workers.size(), 2U);
  kill(workers.front(), SIGKILL);
  const Finished killed = program.finish();
  ASSERT_EQ(killed.code, 0) << killed.err;
  EXPECT_THAT(killed.err, AllOf(HasSubstr("the worker of 'choices, part "),
                                HasSubstr("died (killed by signal 9); it is started again")));
  ASSERT_EQ(run(command("choices.yaml", "whole", "1")).code, 0);
  EXPECT_EQ(log("killed", "choices"), log("whole", "choices"));
}

TEST_F(EvalWorkers, APartWhoseWorkersDieTwiceEndsTheRunWithItsName) {
  add_questions(kMany);
  Program program(folder_.path(), kBinary, command("choices.yaml", "deadly", "2"));
  while (program.running()) {
    for (const pid_t worker : program.children()) kill(worker, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const Finished dead = program.finish();
  EXPECT_EQ(dead.code, 1);
  EXPECT_THAT(dead.err,
              AllOf(HasSubstr("the worker of 'choices, part "),
                    HasSubstr("died twice (killed by signal 9)"), HasSubstr("--workers 1")));
}

TEST_F(EvalWorkers, AnInterruptEndsAllOfThemAndTheSameCommandGoesOn) {
  add_questions(kMany);
  Program program(folder_.path(), kBinary, command("choices.yaml", "parts", "2"));
  ASSERT_TRUE(two_at_work(program, "parts")) << program.finish().err;
  const std::vector<pid_t> workers = program.children();
  program.signal(SIGTERM);
  const Finished stopped = program.finish();
  EXPECT_EQ(stopped.code, 130) << stopped.err;
  EXPECT_THAT(stopped.err, AllOf(HasSubstr("interrupted"), Not(HasSubstr("died"))));
  for (const pid_t worker : workers)
    while (kill(worker, 0) == 0 &&
           slurp(fmt::format("/proc/{}/stat", worker)).find(") Z") == std::string::npos)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const auto answered = std::ranges::count(log("parts", "choices"), '\n') - 1;
  ASSERT_LT(answered, kMany);
  const Finished resumed = run(command("choices.yaml", "parts", "2"));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  const auto json = nlohmann::json::parse(slurp(folder_ / "parts/tasks.json"));
  EXPECT_EQ(json["tasks"][0]["items"], kMany);
  EXPECT_EQ(json["tasks"][0]["asked"], kMany - answered);
}

TEST_F(EvalWorkers, AutoTakesAsManyAsThreads) {
  add_questions(9);
  const std::string line = fmt::format(
      "export OMP_NUM_THREADS=2; exec {} eval model --tasks word.yaml --workers auto", kBinary);
  const Finished two = Program(folder_.path(), "/bin/sh", {"-c", line}).finish();
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_THAT(two.err, HasSubstr("2 workers, one thread each"));
  const Finished one = run(command("word.yaml", "o", "auto"));  // one thread
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.err, Not(HasSubstr("workers")));
}

TEST_F(EvalWorkers, NumbersThatAreNoneAreRefused) {
  add_questions(9);
  for (const char* wrong : {"many", "0", "-1", "2 3", "1.5", "100000"}) {
    const Finished refused =
        run({"eval", "model", "--tasks", "word.yaml", std::string("--workers=") + wrong});
    EXPECT_EQ(refused.code, 2) << wrong;
    EXPECT_THAT(refused.err, HasSubstr("[--workers] expected auto or a number")) << wrong;
  }
  const Finished text = run({"eval", "model", "--text", "questions.jsonl", "--workers", "2"});
  EXPECT_EQ(text.code, 2);
  EXPECT_THAT(text.err, HasSubstr("[--workers] needs --tasks"));
}

}  // namespace
}  // namespace fovea::testing::eval_workers_test
