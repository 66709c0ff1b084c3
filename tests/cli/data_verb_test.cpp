// fovea data: a tokenizer is learned, text is tokenized ahead, and a run uses both.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace fovea::testing::data_verb_test {
namespace {

using ::testing::HasSubstr;

const std::string kBinary = FOVEA_BINARY_DIR "/bin/fovea";

class DataVerb : public ::testing::Test {
 protected:
  DataVerb() {
    std::string text;
    for (int i = 0; i < 500; ++i)
      text += "line " + std::to_string(i) + " of a text that nobody wrote, but all can read\n";
    spill(folder_ / "text.txt", text);
    setenv("FOVEA_CACHE", (folder_ / "cache").c_str(), 1);
  }
  Finished run(const std::vector<std::string>& arguments) {
    return Program(folder_.path(), kBinary, arguments).finish();
  }
  TemporaryFolder folder_;
};

TEST_F(DataVerb, ALearnedTokenizerIsUsedByTrainAndGenerate) {
  const Finished learned = run(
      {"data", "train-tokenizer", "text.txt", "--vocab", "300", "--out", "tokenizer", "--json"});
  ASSERT_EQ(learned.code, 0) << learned.err;
  EXPECT_EQ(nlohmann::json::parse(learned.out)["vocabulary"], 300);

  spill(folder_ / "recipe.yaml",
        "name: tiny\ntokenizer: tokenizer\ndata: {sources: [{path: text.txt}]}\n"
        "model: {layers: 1, width: 16, heads: 2, ffn_width: 32, context: 32}\n"
        "train: {steps: 2, batch_rows: 2, evaluation_tokens: 256, dtype: float32, device: cpu}\n");
  const Finished prepared = run({"data", "prepare", "recipe.yaml", "--json"});
  ASSERT_EQ(prepared.code, 0) << prepared.err;
  const auto source = nlohmann::json::parse(prepared.out)["sources"][0];
  EXPECT_LT(source["tokens"].get<double>(), 0.5 * source["bytes"].get<double>());

  const Finished trained = run({"train", "recipe.yaml", "--quiet"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Finished text = run({"generate", "runs/tiny", "line", "--max-tokens", "5", "--json"});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_TRUE(nlohmann::json::accept(text.out));
}

TEST_F(DataVerb, AFolderIsPreparedOnceAndASecondRunFindsIt) {
  const Finished first = run({"data", "prepare", "text.txt"});
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("1 documents"));
  EXPECT_THAT(first.err, HasSubstr("reading text"));
  const Finished second = run({"data", "prepare", "text.txt"});
  EXPECT_EQ(second.out, first.out);
  EXPECT_THAT(second.err, HasSubstr("found text"));
}

TEST_F(DataVerb, WrongInputIsNamed) {
  const auto refused = [&](const std::vector<std::string>& arguments, const std::string& named) {
    const Finished result = run(arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(named));
  };
  refused({"data"}, "subcommand");
  refused({"data", "prepare", "nowhere"}, "nowhere");
  refused({"data", "prepare", "text.txt", "train.steps=3"}, "overrides");
  refused({"data", "prepare", "text.txt", "--tokenizer", "none"}, "none");
  refused({"data", "train-tokenizer", "text.txt", "--out", "t", "--vocab", "100"}, "259");
}

}  // namespace
}  // namespace fovea::testing::data_verb_test
