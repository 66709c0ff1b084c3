// `fovea eval --tasks` as a process: results, logs, errors, a kill in the middle.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "fovea/base/files.h"
#include "fovea/checkpoint/model_folder.h"
#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace fovea::testing::eval_tasks_test {
namespace {

const std::string kProgram = FOVEA_BINARY_DIR "/bin/fovea";

/// A random model of 64 positions and a task of 40 questions beside it.
class EvalTasks : public ::testing::Test {
 protected:
  EvalTasks() {
    ModelConfig config = tiny_config();
    config.context = 64;
    save_model(folder_ / "model", Transformer(config.resolved(config.vocab_size), 1),
               *byte_tokenizer());
    write_file(folder_ / "mine.yaml",
               "name: mine\ndata: mine.jsonl\ncontext: '{{q}}:'\nchoices: c\ngold: g\n");
    std::string records;
    for (int n = 0; n < 40; ++n)
      records += fmt::format("{{\"q\": \"q{}\", \"c\": [\"yes\", \"no, {}\"], \"g\": {}}}\n", n,
                             n % 7, n % 2);
    write_file(folder_ / "mine.jsonl", records);
  }
  std::vector<std::string> arguments(std::vector<std::string> more) const {
    more.insert(more.begin(), {"eval", (folder_ / "model").string()});
    return more;
  }
  Finished run(const std::vector<std::string>& more) const {
    return Program(folder_.path(), kProgram, arguments(more)).finish();
  }
  TemporaryFolder folder_;
};

TEST_F(EvalTasks, AgainstComparesTwoModelsQuestionByQuestion) {
  ModelConfig config = tiny_config();
  config.context = 64;
  save_model(folder_ / "other", Transformer(config.resolved(config.vocab_size), 2),
             *byte_tokenizer());
  const Finished other =
      Program(folder_.path(), kProgram,
              {"eval", (folder_ / "other").string(), "--tasks", "mine.yaml", "--out", "b", "-q"})
          .finish();
  ASSERT_EQ(other.code, 0) << other.err;
  const Finished table = run({"--tasks", "mine.yaml", "--out", "a", "--against", "b", "-q"});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find("against b"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("McNemar"), std::string::npos);
  const auto json = nlohmann::json::parse(slurp(folder_ / "a/tasks.json"));
  const auto& pair = json["against"][0];
  EXPECT_EQ(pair["questions"], 40);
  EXPECT_EQ(pair["first"], json["tasks"][0]["metrics"][pair["metric"].get<std::string>()]["value"]);
  EXPECT_NEAR(
      pair["difference"].get<double>(),
      (pair["mcnemar"]["only_first"].get<double>() - pair["mcnemar"]["only_second"].get<double>()) /
          40.0,
      1e-12);
  // Half of the questions: those that both have answered are compared.
  const Finished half =
      run({"--tasks", "mine.yaml", "--limit", "20", "--out", "c", "--against", "b", "-q"});
  EXPECT_NE(half.out.find("20 questions of one side alone"), std::string::npos) << half.out;
}

TEST_F(EvalTasks, AgainstRefusesWhatIsNoLog) {
  const Finished alone = run({"--tasks", "mine.yaml", "--against", "b", "-q"});
  EXPECT_EQ(alone.code, 2);
  EXPECT_NE(alone.err.find("needs --out"), std::string::npos) << alone.err;
  const Finished missing = run({"--tasks", "mine.yaml", "--out", "a", "--against", "nowhere"});
  EXPECT_NE(missing.code, 0);
  EXPECT_NE(missing.err.find("nowhere/results/mine.jsonl"), std::string::npos) << missing.err;
}

TEST_F(EvalTasks, OptionsOfAnotherQuestionAreRefused) {
  write_file(folder_ / "some.txt", "A text of some length, so that a stream has parts.");
  const Finished stream = run({"--text", "some.txt", "--stream", "20", "-q"});
  EXPECT_EQ(stream.code, 0) << stream.err;
  EXPECT_NE(stream.out.find("tokens read"), std::string::npos) << stream.out;
  const std::vector<std::pair<std::string, std::vector<std::string>>> wrong{
      {"--stream", {"--tasks", "mine.yaml", "--stream", "20"}},
      {"--stream", {"--text", "some.txt", "--stream", "20", "--copy", "4"}},
      {"--against", {"--text", "some.txt", "--against", "b"}},
      {"--depths", {"--text", "some.txt", "--depths", "0.5"}}};
  for (const auto& [option, arguments] : wrong) {
    const Finished refused = run(arguments);
    EXPECT_EQ(refused.code, 2) << option;
    EXPECT_NE(refused.err.find(option), std::string::npos) << refused.err;
    EXPECT_NE(refused.err.find("needs"), std::string::npos) << refused.err;
  }
}

TEST_F(EvalTasks, PrintsATableOrJsonAndWritesALineAQuestion) {
  const Finished table = run({"--tasks", "mine.yaml", "--out", "out", "-q"});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find("mine"), std::string::npos);
  EXPECT_NE(table.out.find("acc_norm"), std::string::npos);
  EXPECT_NE(table.out.find("50.0 %"), std::string::npos);  // chance
  const std::string log = slurp(folder_ / "out/results/mine.jsonl");
  EXPECT_EQ(std::ranges::count(log, '\n'), 41);
  const auto json =
      nlohmann::json::parse(run({"--tasks", "mine.yaml", "--limit", "10", "--json", "-q"}).out);
  EXPECT_EQ(json["tasks"][0]["items"], 10);
  EXPECT_EQ(json["tasks"][0]["metrics"]["acc"]["items"], 10);
  const auto saved = nlohmann::json::parse(slurp(folder_ / "out/tasks.json"));
  EXPECT_EQ(saved["tasks"][0]["task"], "mine");
}

TEST_F(EvalTasks, WrongInputNamesItsPlaceAndExitsWithTwo) {
  const auto expect = [&](const std::vector<std::string>& more, const std::string& part) {
    const Finished r = run(more);
    EXPECT_EQ(r.code, 2) << r.err;
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
    EXPECT_EQ(r.out, "");
  };
  expect({"--tasks", "helaswag", "--data", "."}, "did you mean 'hellaswag'");
  expect({"--tasks", "hellaswag", "--data", "."}, "hellaswag.jsonl");
  expect({"--tasks", "hellaswag", "--data", "nowhere"}, "--data");
  expect({}, "--text, --tasks and --prompts");
  expect({"--tasks", "mine.yaml", "--text", "mine.jsonl"}, "leave all but one out");
  spill(folder_ / "mine.jsonl", "{\"q\": 1, \"c\": [\"a\", \"b\"], \"g\": 0}\n{\"q\": 1}\n");
  expect({"--tasks", "mine.yaml"}, "mine.jsonl:2");
}

TEST_F(EvalTasks, QuestionsThatCannotBeAskedAreToldAndCounted) {
  spill(
      folder_ / "mine.jsonl",
      "{\"q\": 1, \"c\": [\"a\", \"b\"], \"g\": 0}\n{\"q\": 2, \"c\": [\"a\", \"\"], \"g\": 0}\n");
  const Finished r = run({"--tasks", "mine.yaml", "-q"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.err.find("1 of 2 questions"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("question 1: choice 1 has no text"), std::string::npos) << r.err;
}

TEST_F(EvalTasks, WhatAModelWritesIsMeasuredBesideItsBase) {
  spill(folder_ / "p.jsonl", "{\"prompt\": \"Once\"}\n{\"prompt\": \"Twice\"}\n");
  const Finished r = run({"--prompts", "p.jsonl", "--base", "model", "--max-tokens", "12",
                          "--temperature", "0", "--json", "-q"});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto json = nlohmann::json::parse(r.out);
  EXPECT_EQ(json["texts"], 2);
  // The same bits on a CPU; on a GPU sums of other batches differ in their last bits.
  EXPECT_NEAR(json["self_perplexity"].get<double>() / json["base_perplexity"].get<double>(), 1.0,
              1e-5);
  spill(folder_ / "p.jsonl", "{\"prompt\": \"Once\"}\n{\"text\": \"Twice\"}\n");
  const Finished wrong = run({"--prompts", "p.jsonl"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_NE(wrong.err.find("p.jsonl:2"), std::string::npos) << wrong.err;
}

TEST_F(EvalTasks, PromptsAreReadAsGenerateReadsThem) {
  for (const char* line :
       {R"({"prompt": "a", "prompt": "b"})", R"({"prompt": "a", "seed": -1})",
        R"({"prompt": "a", "stop": [""]})", R"({"prompt": "a", "max_tokens": "5"})",
        R"({"prompt": "a", "colour": 1})", R"(["prompt"])"}) {
    spill(folder_ / "p.jsonl", std::string("{\"prompt\": \"a\"}\n") + line + "\n");
    const Finished eval = run({"--prompts", "p.jsonl"});
    EXPECT_EQ(eval.code, 2) << line;
    EXPECT_NE(eval.err.find("p.jsonl"), std::string::npos) << eval.err;
  }
  spill(folder_ / "p.csv", "id,prompt\n1,Once\n2,Twice\n");
  spill(folder_ / "p.txt", "Once\nTwice\n");
  for (const char* file : {"p.csv", "p.txt"}) {
    const Finished eval = run({"--prompts", file, "--max-tokens", "3", "--json", "-q"});
    ASSERT_EQ(eval.code, 0) << eval.err;
    EXPECT_EQ(nlohmann::json::parse(eval.out)["texts"], 2);
  }
}

TEST_F(EvalTasks, AKilledRunGoesOnAndLosesNoQuestion) {
  std::string records;
  for (int n = 0; n < 4000; ++n)
    records += fmt::format("{{\"q\": \"q{}\", \"c\": [\"yes\", \"no\"], \"g\": {}}}\n", n, n % 2);
  spill(folder_ / "mine.jsonl", records);
  const std::vector<std::string> command = arguments({"--tasks", "mine.yaml", "--out", "o", "-q"});
  const auto log = folder_ / "o/results/mine.jsonl";
  Program first(folder_.path(), kProgram, command);
  ASSERT_TRUE(
      first.until([&] { return std::filesystem::exists(log) && slurp(log).size() > 4000; }));
  first.signal(SIGKILL);
  EXPECT_EQ(first.finish().code, 128 + SIGKILL);
  const int64_t answered = std::ranges::count(slurp(log), '\n') - 1;
  ASSERT_GT(answered, 0);
  ASSERT_LT(answered, 4000);
  const Finished second = Program(folder_.path(), kProgram, command).finish();
  EXPECT_EQ(second.code, 0) << second.err;
  const auto json = nlohmann::json::parse(slurp(folder_ / "o/tasks.json"));
  EXPECT_EQ(json["tasks"][0]["items"], 4000);
  EXPECT_EQ(json["tasks"][0]["asked"].get<int64_t>(), 4000 - answered);
  EXPECT_EQ(std::ranges::count(slurp(log), '\n'), 4001);
}

}  // namespace
}  // namespace fovea::testing::eval_tasks_test
