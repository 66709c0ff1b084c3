// The program as a stranger uses it: help, results as text and JSON, exit codes, bad input,
// interrupted and killed runs.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>

#include "fovea/checkpoint/safetensors.h"
#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace fovea::testing::cli_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::string kBinary = FOVEA_BINARY_DIR "/bin/fovea";
const std::filesystem::path kGolden = FOVEA_SOURCE_DIR "/tests/golden/attention";

class Cli : public ::testing::Test {
 protected:
  Cli() {
    setenv("FOVEA_CACHE", (folder_ / "cache").c_str(), 1);
    spill(folder_ / "text.txt", numbered_lines());
  }

  /// A model of a few thousand parameters; `more` are further lines of the recipe.
  void recipe(const std::string& more = "") {
    spill(folder_ / "recipe.yaml",
          "name: tiny\ndata: {sources: [{path: text.txt}]}\n"
          "model: {layers: 1, width: 16, heads: 2, ffn_width: 32, context: 32}\n"
          "train: {steps: 6, batch_rows: 2, evaluation_interval: 3, evaluation_tokens: 256,\n"
          "        checkpoint_interval: 2, log_interval: 1, dtype: float32, device: cpu}\n" +
              more);
  }

  Finished run(const std::vector<std::string>& arguments, const std::string& out_path = "") {
    return Program(folder_.path(), kBinary, arguments, out_path).finish();
  }

  TemporaryFolder folder_;
};

TEST_F(Cli, HelpNamesEveryVerbAndEveryVerbExplainsItself) {
  const Finished help = run({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* verb : {"train", "compare", "eval", "attention", "info"}) {
    EXPECT_THAT(help.out, HasSubstr(std::string("\n  ") + verb));
    const Finished own = run({verb, "--help"});
    EXPECT_EQ(own.code, 0);
    EXPECT_THAT(own.out, HasSubstr("--json"));
  }
}

TEST_F(Cli, AnUnknownVerbOptionOrKeyShowsTheNearestAndIsUsage) {
  recipe("trian: {steps: 1}\n");
  const Finished verb = run({"trian"});
  EXPECT_EQ(verb.code, 2);
  EXPECT_THAT(verb.err, HasSubstr("train"));
  EXPECT_EQ(run({"train", "recipe.yaml", "--jsno"}).code, 2);
  const Finished key = run({"train", "recipe.yaml"});
  EXPECT_EQ(key.code, 2);
  EXPECT_THAT(key.err, HasSubstr("recipe.yaml:6"));
  EXPECT_THAT(key.err, HasSubstr("did you mean 'train'"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "runs"));
}

TEST_F(Cli, WrongInputOfEveryKindExitsWithTwoAndSaysWhere) {
  recipe();
  const auto refused = [&](const std::vector<std::string>& arguments, const std::string& part) {
    const Finished result = run(arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(part));
    EXPECT_THAT(result.err, Not(HasSubstr("This is a bug")));
    EXPECT_THAT(result.out, IsEmpty());
  };
  refused({"train", "missing.yaml"}, "missing.yaml");
  refused({"train", "recipe.yaml", "model.heads=3"}, "heads");
  refused({"train", "recipe.yaml", "model.layers=0"}, "model.layers");
  refused({"train", "recipe.yaml", "train.steps=many"}, "train.steps");
  refused({"train", "recipe.yaml", "data.sources.0.path=nowhere.txt"}, "nowhere.txt");
  refused({"compare", "recipe.yaml"}, "compare");
  refused({"eval", "nowhere", "--text", "text.txt"}, "nowhere");
  refused({"attention", "text.txt"}, "text.txt");
  refused({"attention", (kGolden / "plain_mha.safetensors").string(), "--path", "refrence"},
          "reference");
}

TEST_F(Cli, ARunIsTrainedFinishedOnceScoredAndTruncationIsNamed) {
  recipe();
  const Finished first = run({"train", "recipe.yaml", "--json", "--quiet"});
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.err, IsEmpty());
  const auto result = nlohmann::json::parse(first.out);
  EXPECT_EQ(result["steps"], 6);
  EXPECT_EQ(result["tokens"], 6 * 2 * 32);
  const Finished again = run({"train", "recipe.yaml", "--json", "--quiet"});
  EXPECT_EQ(nlohmann::json::parse(again.out)["loss"], result["loss"]);

  const Finished eval = run({"eval", "runs/tiny", "--text", "text.txt", "--json"});
  ASSERT_EQ(eval.code, 0) << eval.err;
  EXPECT_THAT(eval.out, HasSubstr("bits_per_byte"));
  EXPECT_TRUE(nlohmann::json::accept(eval.out));

  const std::filesystem::path weights =
      folder_.path() / result["checkpoint"].get<std::string>() / "model.safetensors";
  ASSERT_TRUE(std::filesystem::exists(weights)) << weights;
  std::filesystem::resize_file(weights, std::filesystem::file_size(weights) - 1);
  const Finished damaged =
      run({"eval", result["checkpoint"].get<std::string>(), "--text", "text.txt"});
  EXPECT_EQ(damaged.code, 2);
  EXPECT_THAT(damaged.err, HasSubstr("model.safetensors"));
}

TEST_F(Cli, AnInterruptSavesExitsWith130AndTheNextRunFinishes) {
  recipe();
  const std::vector<std::string> command{"train", "recipe.yaml", "train.steps=1500",
                                         "train.checkpoint_interval=0",
                                         "train.evaluation_interval=0"};
  Program program(folder_.path(), kBinary, command);
  const auto metrics = folder_ / "runs/tiny/metrics.jsonl";
  ASSERT_TRUE(program.until([&] { return slurp(metrics).find("\n") != std::string::npos; }));
  program.signal(SIGINT);
  const Finished stopped = program.finish();
  EXPECT_EQ(stopped.code, 130) << stopped.err;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "runs/tiny/checkpoints"));
  const Finished changed = run({"train", "recipe.yaml", "train.steps=1500", "model.width=24"});
  EXPECT_EQ(changed.code, 2);
  EXPECT_THAT(changed.err, HasSubstr("model.width"));
  const Finished finished = run(command);
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("1500 steps"));
}

TEST_F(Cli, AKilledCompareGoesOnToTheNumbersOfAnUninterruptedOne) {
  recipe(
      "compare:\n  seeds: [0, 1]\n  baselines: [bigram]\n  sample: {prompt: 'line ', tokens: 4}\n"
      "  map: {text: 'line 1', tokens: 6}\n  variants:\n    - name: standard\n"
      "    - name: focal\n      set: {model.attention.temperature.value: 0.4}\n");
  const auto command = [](const char* folder, const char* steps) {
    return std::vector<std::string>{"compare", "recipe.yaml", std::string("run_folder=") + folder,
                                    std::string("train.steps=") + steps};
  };
  const Finished whole = run(command("whole", "60"));
  ASSERT_EQ(whole.code, 0) << whole.err;
  Program program(folder_.path(), kBinary, command("parts", "60"));
  ASSERT_TRUE(
      program.until([&] { return std::filesystem::exists(folder_ / "parts/compare.json"); }));
  program.signal(SIGKILL);
  EXPECT_EQ(program.finish().code, 128 + SIGKILL);
  const Finished resumed = run(command("parts", "60"));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  const auto numbers = [&](const char* name) {
    const auto json = nlohmann::json::parse(slurp(folder_ / (std::string(name) + "/compare.json")));
    std::vector<double> values;
    for (const auto& variant : json["variants"]) {
      for (const auto& one : variant["runs"]) values.push_back(one["validation_bits_per_byte"]);
    }
    return values;
  };
  EXPECT_EQ(numbers("whole").size(), 4u);
  EXPECT_EQ(numbers("whole"), numbers("parts"));
  EXPECT_THAT(slurp(folder_ / "parts/report.html"), HasSubstr("focal"));
}

TEST_F(Cli, ResultsOfAnotherProgramBecomeTheTableAndReportOfACompare) {
  const auto runs = [](double first, double second) {
    nlohmann::json list;
    for (int seed = 0; seed < 2; ++seed) {
      list.push_back({{"seed", seed},
                      {"validation_bits_per_byte", seed == 0 ? first : second},
                      {"validation_perplexity", nullptr},
                      {"validation_loss", nullptr},
                      {"tokens", 640},
                      {"seconds", 1.5},
                      {"tokens_per_second", 426.0},
                      {"peak_memory_bytes", 0}});
    }
    return list;
  };
  const nlohmann::json document{
      {"schema", 1},
      {"title", "Mine and softmax"},
      {"budget", "tokens"},
      {"budget_amount", 640},
      {"created", "2026-01-31T12:00:00Z"},
      {"machine", {{"cpu", "a"}, {"cores", 2}, {"isa", "b"}, {"memory_bytes", 9}}},
      {"code_version", "mine"},
      {"torch_version", "2.11"},
      {"data",
       {{"sources", {"text"}},
        {"bytes", 9},
        {"documents", 1},
        {"validation_bytes", 1},
        {"fingerprint", "c"}}},
      {"reference", "softmax"},
      {"variants",
       {{{"name", "softmax"}, {"parameters", 7}, {"runs", runs(2.5, 2.6)}},
        {{"name", "mine"}, {"parameters", 7}, {"runs", runs(2.4001, 2.5)}}}}};
  spill(folder_ / "mine.json", document.dump());
  const Finished shown = run({"compare", "mine.json"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("mine"));
  EXPECT_THAT(slurp(folder_ / "mine.html"), HasSubstr("Mine and softmax"));
  const auto summary =
      nlohmann::json::parse(run({"compare", "mine.json", "--json"}).out)["variants"][1]["summary"];
  EXPECT_EQ(summary["verdict"], "better");
  EXPECT_EQ(nlohmann::json::parse(slurp(folder_ / "mine.json")), document);
  const Finished changed = run({"compare", "mine.json", "train.steps=5"});
  EXPECT_EQ(changed.code, 2);
  EXPECT_THAT(changed.err, HasSubstr("train.steps=5"));
  spill(folder_ / "mine.json", "{}");
  EXPECT_EQ(run({"compare", "mine.json"}).code, 2);
}

TEST_F(Cli, APlanForetellsParametersTokensAndMemoryOfTheRun) {
  recipe();
  const std::vector<std::string> sizes{
      "model.layers=4",    "model.width=256",     "model.heads=4", "model.ffn_width=704",
      "model.context=256", "train.batch_rows=12", "train.steps=2", "--json"};
  const auto with = [&](const char* verb) {
    std::vector<std::string> arguments{verb, "recipe.yaml"};
    arguments.insert(arguments.end(), sizes.begin(), sizes.end());
    return arguments;
  };
  const Finished planned = run(with("plan")), trained = run(with("train"));
  ASSERT_EQ(planned.code, 0) << planned.err;
  ASSERT_EQ(trained.code, 0) << trained.err;
  const auto plan = nlohmann::json::parse(planned.out), result = nlohmann::json::parse(trained.out);
  EXPECT_EQ(plan["parameters"]["total"], result["parameters"]);
  EXPECT_EQ(plan["tokens"]["run"], result["tokens"]);
  const double ratio =
      plan["memory_bytes"]["total"].get<double>() / result["peak_memory_bytes"].get<double>();
#if defined(__SANITIZE_ADDRESS__)
  constexpr double kLeast = 0.6;  // the peak has the sanitizer's shadow memory in it
#else
  constexpr double kLeast = 0.8;
#endif
  EXPECT_GT(ratio, kLeast);
  EXPECT_LT(ratio, 1.2);
}

TEST_F(Cli, AnAttentionCaseShowsItsPathAndItsErrors) {
  for (const char* path : {"automatic", "reference", "decode"}) {
    const Finished result = run(
        {"attention", (kGolden / "focal_constant.safetensors").string(), "--path", path, "--json"});
    ASSERT_EQ(result.code, 0) << result.err;
    const auto json = nlohmann::json::parse(result.out);
    EXPECT_LT(json["errors"]["out"].get<double>(), 1e-4) << path;
  }
}

TEST_F(Cli, AnErrorOfAnAttentionCaseThatIsNoNumberIsNamedInJson) {
  const auto path = folder_ / "case.safetensors";
  const at::Tensor x = at::ones({1, 1, 3, 4});
  write_safetensors(path,
                    {{"q", x * std::numeric_limits<double>::quiet_NaN()},
                     {"k", x},
                     {"v", x},
                     {"expected_out", x}},
                    {{"attention_spec", R"({"head_dim": 4})"}});
  const Finished result = run({"attention", path.string(), "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out)["errors"]["out"], "nan");
}

TEST_F(Cli, AFullOutputIsAnError) {
  const Finished result = run({"info"}, "/dev/full");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("space"));
}

TEST_F(Cli, AForcedInstructionSetIsReportedAndAnUnknownOneRefused) {
  setenv("FOVEA_ISA", "scalar", 1);
  EXPECT_THAT(run({"info"}).out, HasSubstr("isa_chosen                   scalar"));
  setenv("FOVEA_ISA", "scaler", 1);
  const Finished refused = run({"info"});
  unsetenv("FOVEA_ISA");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("did you mean 'scalar'"));
}

}  // namespace
}  // namespace fovea::testing::cli_test
