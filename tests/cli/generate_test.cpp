// `fovea generate` and `fovea chat` as processes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "fovea/checkpoint/model_folder.h"
#include "fovea/runtime/machine.h"
#include "tests/cli/piped_program.h"
#include "tests/support/tiny_model.h"

namespace fovea::testing::generate_test {
namespace {

const std::string kProgram = FOVEA_BINARY_DIR "/bin/fovea";

/// A random model of 16 positions in a folder of its own.
class GenerateVerb : public ::testing::Test {
 protected:
  GenerateVerb() { save_model(model(), Transformer(tiny_config(), 1), *byte_tokenizer()); }

  std::filesystem::path model() const { return folder_ / "model"; }
  PipedResult run(std::vector<std::string> arguments, std::string_view input = "") const {
    arguments.insert(arguments.begin() + 1, model().string());
    return run_piped(kProgram, arguments, input);
  }
  TemporaryFolder folder_;
};

std::vector<nlohmann::json> json_lines(const std::string& text) {
  std::vector<nlohmann::json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST_F(GenerateVerb, PromptFromArgumentFileAndStdinGiveTheSameText) {
  const auto argument = run({"generate", "ab", "--max-tokens", "6"});
  EXPECT_EQ(argument.exit_code, 0) << argument.err;
  EXPECT_NE(argument.err.find("tokens/s"), std::string::npos);
  write_file(folder_ / "prompt.txt", "ab\n");
  const auto file =
      run({"generate", "--file", (folder_ / "prompt.txt").string(), "--max-tokens", "6", "-q"});
  const auto input = run({"generate", "--max-tokens", "6", "-q"}, "ab\n");
  EXPECT_EQ(file.out, argument.out);
  EXPECT_EQ(input.out, argument.out);
  EXPECT_EQ(input.err, "");
  const auto json = run({"generate", "ab", "--max-tokens", "6", "--json"});
  EXPECT_EQ(nlohmann::json::parse(json.out)["text"].get<std::string>() + "\n", argument.out);
}

TEST_F(GenerateVerb, AnOptionTakesOneValueAndTakesItAsItStands) {
  const auto plain = run({"generate", "ab", "--max-tokens", "6", "--temperature", "0", "-q"});
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  const auto last = run({"generate", "-q", "--max-tokens", "6", "--temperature", "0", "ab"});
  EXPECT_EQ(last.out, plain.out) << last.err;
  const auto stopped =
      run({"generate", "-q", "--max-tokens", "6", "--temperature", "0", "--stop", "zz", "ab"});
  EXPECT_EQ(stopped.out, plain.out) << stopped.err;
  // "[x]" is three characters to stop at, not a list of one.
  const std::string first = plain.out.substr(0, plain.out.starts_with("\xEF") ? 3 : 1);
  const auto with_stop = [&](const std::string& stop) {
    return run({"generate", "ab", "-q", "--max-tokens", "6", "--temperature", "0", "--stop", stop});
  };
  EXPECT_EQ(with_stop(first).out, "\n");
  EXPECT_EQ(with_stop("[" + first + "]").out, plain.out);
}

TEST_F(GenerateVerb, ADeviceThatIsNotThereIsNamedWithTheReason) {
  const auto unknown = run({"generate", "ab", "-q", "--device", "gpu"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_NE(unknown.err.find("--device"), std::string::npos) << unknown.err;
  const auto cuda = run({"generate", "ab", "-q", "--max-tokens", "2", "--device", "cuda"});
  EXPECT_EQ(cuda.exit_code, why_no_gpu().empty() ? 0 : 2) << cuda.err;
  EXPECT_NE(cuda.err.find(why_no_gpu()), std::string::npos) << cuda.err;
}

TEST_F(GenerateVerb, Int8ActivationsAreForPackedWeights) {
  ModelConfig wide = tiny_config();
  wide.width = wide.ffn_width = 32, wide.head_dim = 16;  // whole blocks
  save_model(folder_ / "wide", Transformer(wide.resolved(259), 1), *byte_tokenizer());
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", (folder_ / "wide").string(), "ab", "--max-tokens", "6",
                               "-q", "--activations"});
    return run_piped(kProgram, more, "");
  };
  const auto packed = with({"int8", "--weights", "q8_0"});
  EXPECT_EQ(packed.exit_code, 0) << packed.err;
  EXPECT_EQ(with({"int16", "--weights", "q4_1", "--dtype", "float32"}).exit_code, 0);
  const auto plain = with({"int8"});
  EXPECT_EQ(plain.exit_code, 2);
  EXPECT_NE(plain.err.find("add --weights q8_0"), std::string::npos) << plain.err;
  const auto unknown = with({"int9"});
  EXPECT_NE(unknown.err.find("expected one of auto, exact, int16, int8"), std::string::npos)
      << unknown.err;
}

TEST_F(GenerateVerb, ABatchAnswersEachLineWithItsOwnKeys) {
  const auto result = run({"generate", "--prompts", "-", "--max-tokens", "4", "-q"},
                          "{\"prompt\": \"a\", \"id\": [7]}\n\n"
                          "{\"prompt\": \"b\", \"max_tokens\": 2}\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto lines = json_lines(result.out);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0]["id"][0], 7);
  EXPECT_EQ(lines[1]["prompt"], "b");
  EXPECT_EQ(lines[1]["tokens"], 2);
}

// Lines of a text file are prompts as they stand; a batch of any size gives the same lines.
TEST_F(GenerateVerb, ATextFileHasAPromptALine) {
  write_file(folder_ / "prompts.txt", "{\"prompt\": 5}\r\n\nab \nc");
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"generate", "--prompts", (folder_ / "prompts.txt").string(),
                                       "--max-tokens", "3"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  };
  const auto one = with({"--batch", "1"}), many = with({}), ready = with({"--unordered"});
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_NE(many.err.find("3 prompts, up to 8 at once: caches of at most"), std::string::npos)
      << many.err;
  EXPECT_NE(many.err.find("3 prompts, 9 tokens in"), std::string::npos) << many.err;
  const auto lines = json_lines(one.out), others = json_lines(many.out);
  ASSERT_EQ(lines.size(), 3U);
  ASSERT_EQ(others.size(), 3U);
  ASSERT_EQ(json_lines(ready.out).size(), 3U);
  const std::vector<std::string> prompts{"{\"prompt\": 5}", "ab ", "c"};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(lines[i]["prompt"], prompts[i]);
    EXPECT_EQ(lines[i]["text"], others[i]["text"]);
  }
}

TEST_F(GenerateVerb, CtrlCKeepsTheAnswersThatAreWhole) {
  PipedProgram generate(kProgram, {"generate", model().string(), "--prompts", "-", "--unordered",
                                   "--context", "200000"});
  generate.write(
      "{\"prompt\": \"a\", \"max_tokens\": 1}\n"
      "{\"prompt\": \"b\", \"max_tokens\": 1000000000}\n");
  generate.close_input();
  const std::string first = generate.read(20);
  generate.signal(SIGINT);
  const std::string out = first + generate.read();
  EXPECT_EQ(generate.wait(), 130);
  ASSERT_EQ(json_lines(out).size(), 1U) << out;
  EXPECT_EQ(json_lines(out)[0]["index"], 0);
  EXPECT_NE(generate.errors().find("1 of 2 prompts are answered"), std::string::npos);
}

TEST_F(GenerateVerb, WrongInputNamesItsPlaceAndExitsWithTwo) {
  const auto expect = [&](const PipedResult& r, const std::string& part) {
    EXPECT_EQ(r.exit_code, 2) << r.err;
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
    EXPECT_EQ(r.out, "");
  };
  expect(
      run({"generate", "--prompts", "-"}, "{\"prompt\": \"a\"}\n{\"prompt\": 1, \"top_q\": 2}\n"),
      "stdin:2");
  expect(run({"generate", "--prompts", "-"}, "{\"text\": \"a\"}\n"), "'prompt'");
  for (const char* line :
       {R"({"prompt": "much too long for this model"})", R"({"prompt": 5})",
        R"({"prompt": "a", "stop": [5]})", R"({"prompt": "a", "stop": "x"})",
        R"({"prompt": "a", "max_tokens": "5"})", R"({"prompt": "a", "max_tokens": -1})",
        R"({"prompt": "a", "temperature": null})", R"(["prompt"])"})
    expect(run({"generate", "--prompts", "-"}, std::string("{\"prompt\": \"a\"}\n") + line + "\n"),
           "stdin:2");
  expect(run({"generate", "a", "--temperature", "hot"}), "temperature");
  expect(run({"generate", "a", "--file", "b"}), "all but one");
  expect(run({"generate", "--batch", "prompts.jsonl"}), "--prompts FILE");
  expect(run({"generate", "--prompts", "-", "--batch", "1025"}),
         "1 to 1024 texts at once; got '1025'");
  expect(run({"generate", "a", "--batch", "4"}), "beside --prompts");
  expect(run({"generate", "a", "--unordered"}), "beside --prompts");
  expect(run({"generate", "much too long for this model"}), "at most 16 tokens");
  expect(run({"generate", "a", "--dtype", "float"}), "float32");
}

TEST_F(GenerateVerb, ATextThatFillsTheContextSaysWhatToDo) {
  const auto result = run({"generate", "abc", "--max-tokens", "100"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.err.find("--when-full slide"), std::string::npos);
  const auto longer = run({"generate", "abc", "--max-tokens", "30", "--context", "40", "--json"});
  EXPECT_NE(longer.err.find("never trained"), std::string::npos);
}

TEST_F(GenerateVerb, ChatAnswersTurnsAndCommands) {
  const auto result = run({"chat", "--json", "--max-tokens", "3", "--temperature", "0"},
                          "a\n/undo\na\n/set max_tokens=1\nb\n/set max_token=1\n/bad\n"
                          "/set x\n/set =\n/set stop.9=x\n/set\n/show\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto lines = json_lines(result.out);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0]["text"], lines[1]["text"]);
  EXPECT_EQ(lines[2]["tokens"], 1);
  EXPECT_NE(result.err.find("did you mean 'max_tokens'"), std::string::npos);
  EXPECT_NE(result.err.find("unknown command '/bad'"), std::string::npos);
  EXPECT_NE(result.err.find("of 16 positions"), std::string::npos) << "/show came to its turn";
}

TEST_F(GenerateVerb, CtrlCEndsTheAnswerAndNotTheChat) {
  PipedProgram chat(kProgram, {"chat", model().string(), "--max-tokens", "1000000000", "-q"});
  chat.write("a\n");
  EXPECT_NE(chat.read(20), "");
  chat.signal(SIGINT);
  chat.write("/set max_tokens=2\nb\n/exit\n");
  EXPECT_NE(chat.read(), "");
  EXPECT_EQ(chat.wait(), 0) << chat.errors();
}

TEST_F(GenerateVerb, CtrlCEndsGenerateWith130AfterWholeCharacters) {
  PipedProgram generate(kProgram, {"generate", model().string(), "a", "--max-tokens", "1000000000",
                                   "--when-full", "slide"});
  const std::string first = generate.read(20);
  generate.signal(SIGINT);
  const std::string text = first + generate.read();
  EXPECT_EQ(generate.wait(), 130);
  EXPECT_EQ(valid_utf8_prefix(text), text.size());
}

}  // namespace
}  // namespace fovea::testing::generate_test
