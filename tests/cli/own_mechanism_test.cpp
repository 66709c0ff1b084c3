// The example of one's own attention: it trains beside standard attention in `compare`, is seen by
// `inspect`, and the plain program refuses its models by name.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace fovea::testing::own_mechanism_test {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

const std::string kOwn = FOVEA_BINARY_DIR "/bin/own_mechanism";
const std::string kPlain = FOVEA_BINARY_DIR "/bin/fovea";
const std::string kRecipe = FOVEA_SOURCE_DIR "/examples/own_mechanism/recipe.yaml";

TEST(OwnMechanism, TrainsInCompareIsInspectedAndIsUnknownElsewhere) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i) + " of a text\n";
  spill(folder / "text.txt", text);
  setenv("FOVEA_CACHE", (folder / "cache").c_str(), 1);
  const auto run = [&](const std::string& program, const std::vector<std::string>& arguments) {
    return Program(folder.path(), program, arguments).finish();
  };
  const std::vector<std::string> compare{"compare",
                                         kRecipe,
                                         "--quiet",
                                         "data.sources.0.path=text.txt",
                                         "train.steps=3",
                                         "train.batch_rows=2",
                                         "train.evaluation_tokens=256",
                                         "train.dtype=float32",
                                         "model.context=32",
                                         "compare.workers=2",
                                         "compare.baselines=[]"};
  const Finished refused = run(kPlain, compare);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("'power-decay' is no stage of this program"));
  const Finished compared = run(kOwn, compare);
  ASSERT_EQ(compared.code, 0) << compared.err;
  EXPECT_THAT(compared.out, HasSubstr("power-decay"));
  const fs::path runs = folder / "runs/own-mechanism/runs";
  std::string own, standard;
  for (const auto& entry : fs::directory_iterator(runs)) {
    const bool ours = entry.path().filename().string().starts_with("power-decay");
    (ours ? own : standard) = entry.path().string();
  }
  const Finished seen = run(kOwn, {"inspect", standard, own, "--text", "line 1 of a text", "--json",
                                   "--out", "report.html"});
  EXPECT_EQ(seen.code, 0) << seen.err;
  const Finished generated = run(kOwn, {"generate", own, "line", "--max-tokens", "4", "-q"});
  EXPECT_EQ(generated.code, 0) << generated.err;
  const Finished unknown = run(kPlain, {"generate", own, "line"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("power-decay"));
  const Finished wrong = run(kOwn, {"train", kRecipe, "model.attention.own.name=power-decay",
                                    "model.attention.own.values=[-1]"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("own.values"));
}

}  // namespace
}  // namespace fovea::testing::own_mechanism_test
