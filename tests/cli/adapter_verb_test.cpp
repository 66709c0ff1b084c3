// Adapters as a user meets them: train over a base, export to PEFT, put on another time, merge,
// unmerge; Focus hard and off in `generate`, its table in `eval`.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "fovea/checkpoint/model_folder.h"
#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace fovea::testing::adapter_verb_test {
namespace {

using ::testing::HasSubstr;

const std::string kBinary = FOVEA_BINARY_DIR "/bin/fovea";

class AdapterVerb : public ::testing::Test {
 protected:
  AdapterVerb() {
    std::string text;
    for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i) + " of a text\n";
    spill(folder_ / "text.txt", text);
    setenv("FOVEA_CACHE", (folder_ / "cache").c_str(), 1);
    spill(folder_ / "recipe.yaml",
          "name: tiny\ndata: {sources: [{path: text.txt}]}\n"
          "model: {layers: 2, width: 16, heads: 2, ffn_width: 32, context: 32}\n"
          "train: {steps: 3, batch_rows: 2, evaluation_tokens: 256, dtype: float32, device: cpu,\n"
          "        optimizer: {learning_rate: 0.01}, schedule: {warmup_steps: 0}}\n");
  }
  Finished run(const std::vector<std::string>& arguments) {
    return Program(folder_.path(), kBinary, arguments).finish();
  }
  void train(const std::vector<std::string>& overrides) {
    std::vector<std::string> arguments{"train", "recipe.yaml", "--quiet"};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    const Finished done = run(arguments);
    ASSERT_EQ(done.code, 0) << done.err;
  }
  double perplexity(const std::vector<std::string>& model) {
    std::vector<std::string> arguments{"eval", "--text", "text.txt", "--json", "--quiet"};
    arguments.insert(arguments.begin() + 1, model.begin(), model.end());
    const Finished done = run(arguments);
    EXPECT_EQ(done.code, 0) << done.err;
    return done.code == 0
               ? nlohmann::json::parse(done.out)["total"]["token_perplexity"].get<double>()
               : 0.0;
  }
  TemporaryFolder folder_;
};

TEST_F(AdapterVerb, RetrofitsAModelAndItsAdapterIsTheTrainedModel) {
  train({"name=base"});
  const std::vector<std::string> command{"retrofit",
                                         "runs/base",
                                         "--with",
                                         "focus,lora",
                                         "--text",
                                         "text.txt",
                                         "--out",
                                         "fit",
                                         "--steps",
                                         "4",
                                         "--tokens",
                                         "256",
                                         "--copy",
                                         "8",
                                         "model.attention.focus.window=4",
                                         "train.dtype=float32",
                                         "train.device=cpu",
                                         "--json",
                                         "--quiet"};
  const Finished first = run(command);
  ASSERT_EQ(first.code, 0) << first.err;
  const auto json = nlohmann::json::parse(first.out);
  EXPECT_EQ(json["phases"].size(), 2u);
  EXPECT_EQ(json["retention"]["rows"].size(), 3u);
  EXPECT_NE(json["after"]["perplexity"], json["before"]["perplexity"]);
  EXPECT_EQ(json["speeds"][0]["context"], 32);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "fit" / "report.html"));
  // The same command again trains nothing and says the same.
  const Finished again = run(command);
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(nlohmann::json::parse(again.out)["after"], json["after"]);
  // Put on for good, the model folder scores as the adapter on the base does.
  const Finished imported = run({"adapter", "import", "runs/base", "fit/adapter", "whole"});
  ASSERT_EQ(imported.code, 0) << imported.err;
  EXPECT_THAT(imported.out, HasSubstr("attention mechanisms, 4 modules"));
  EXPECT_EQ(perplexity({"whole"}), perplexity({"runs/base", "--adapter", "fit/adapter"}));
  EXPECT_EQ(perplexity({"whole", "--focus", "hard"}),
            perplexity({"runs/base", "--adapter", "fit/adapter", "--focus", "hard"}));
}

TEST_F(AdapterVerb, RetrofitsThatCannotBeAreRefused) {
  train({"name=base"});
  const auto refused = [&](std::vector<std::string> more) {
    std::vector<std::string> command{"retrofit", "runs/base", "--text", "text.txt", "--out", "fit"};
    command.insert(command.end(), more.begin(), more.end());
    const Finished done = run(command);
    EXPECT_EQ(done.code, 2) << done.err;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "fit"));
    return done.err;
  };
  EXPECT_THAT(refused({"--with", "focsu"}), HasSubstr("did you mean 'focus'"));
  EXPECT_THAT(refused({"--with", "focus", "--minutes", "0.1"}), HasSubstr("at least 1 minutes"));
  EXPECT_THAT(refused({"--with", "focus", "model.atention.x=1"}), HasSubstr("atention"));
}

TEST_F(AdapterVerb, GoesFromARunToPeftOntoTheBaseIntoItAndOutAgain) {
  train({"name=base"});
  train({"name=adapted", "train.init_from=runs/base", "train.trainable=lora", "model.lora.rank=4",
         "model.lora.targets=[all-linear]", "train.steps=20"});
  const double base = perplexity({"runs/base"}), adapted = perplexity({"runs/adapted"});
  EXPECT_LT(adapted, base - 1.0);
  const Finished written = run({"adapter", "export", "runs/adapted", "peft", "--json"});
  ASSERT_EQ(written.code, 0) << written.err;
  EXPECT_EQ(nlohmann::json::parse(written.out)["modules"], 14);
  const auto config = nlohmann::json::parse(slurp(folder_ / "peft/adapter_config.json"));
  EXPECT_EQ(config["base_model_name_or_path"], "runs/base");
  EXPECT_NEAR(perplexity({"runs/base", "--adapter", "peft"}), adapted, 1e-3);
  ASSERT_EQ(run({"adapter", "import", "runs/base", "peft", "imported"}).code, 0);
  EXPECT_NEAR(perplexity({"imported"}), adapted, 1e-3);
  const Finished apart = run({"export", "runs/adapted", "apart"});
  EXPECT_THAT(apart.out, HasSubstr("lora.rank"));
  EXPECT_THAT(apart.out, HasSubstr("--merge"));
  const Finished merged = run({"export", "runs/adapted", "merged", "--merge"});
  EXPECT_THAT(merged.out, HasSubstr("loads anywhere as LlamaForCausalLM"));
  EXPECT_NEAR(perplexity({"merged"}), adapted, 1e-3);
  ASSERT_EQ(run({"export", "runs/base", "merged-too", "--adapter", "peft", "--merge"}).code, 0);
  EXPECT_NEAR(perplexity({"merged-too"}), adapted, 1e-3);
  const Finished unmerged = run({"adapter", "unmerge", "merged", "peft", "unmerged"});
  EXPECT_EQ(unmerged.code, 0) << unmerged.err;
  EXPECT_NEAR(perplexity({"unmerged"}), adapted, 1e-3);
  const Finished plain = run({"generate", "runs/adapted", "line", "--max-tokens", "8", "-q"});
  const Finished with_adapter =
      run({"generate", "runs/base", "line", "--adapter", "peft", "--max-tokens", "8", "-q"});
  EXPECT_EQ(with_adapter.out, plain.out) << with_adapter.err;
  const Finished seen = run({"inspect", "runs/base", "--adapter", "peft", "--text",
                             "line 1 of a text", "--out", "look", "--json"});
  ASSERT_EQ(seen.code, 0) << seen.err;
  const auto models = nlohmann::json::parse(seen.out)["models"];
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[1]["name"], "base + peft");
  EXPECT_NE(models[0]["layers"][0]["entropy"], models[1]["layers"][0]["entropy"]);
}

TEST_F(AdapterVerb, SeveralStandBesideEachOther) {
  train({"name=base"});
  const auto retrofit = [&](const std::string& kind) {
    const Finished done = run({"retrofit", "runs/base", "--with", kind, "--text", "text.txt",
                               "--out", kind, "--steps", "4", "--tokens", "64", "--copy", "8",
                               "train.dtype=float32", "train.device=cpu", "--quiet"});
    ASSERT_EQ(done.code, 0) << done.err;
  };
  retrofit("focal");
  retrofit("lora");
  const double both =
      perplexity({"runs/base", "--adapter", "focal/adapter", "--adapter", "lora/adapter"});
  EXPECT_EQ(both,
            perplexity({"runs/base", "--adapter", "lora/adapter", "--adapter", "focal/adapter"}));
  EXPECT_NE(both, perplexity({"runs/base", "--adapter", "lora/adapter"}));
  EXPECT_NE(both, perplexity({"runs/base", "--adapter", "focal/adapter"}));
  // LoRA upon LoRA: the sum of their products.
  ASSERT_EQ(run({"export", "runs/base", "merged", "--adapter", "lora/adapter", "--merge"}).code, 0);
  EXPECT_NEAR(perplexity({"runs/base", "--adapter", "lora/adapter", "--adapter", "lora/adapter"}),
              perplexity({"merged", "--adapter", "lora/adapter"}), 1e-6);
  const Finished twice = run({"eval", "runs/base", "--text", "text.txt", "--adapter",
                              "focal/adapter", "--adapter", "focal/adapter"});
  EXPECT_EQ(twice.code, 2);
  EXPECT_THAT(twice.err, HasSubstr("already"));
}

TEST_F(AdapterVerb, TheSameWeightsRunUnderAnotherAttention) {
  train({"name=base"});
  const double plain = perplexity({"runs/base"});
  EXPECT_EQ(perplexity({"runs/base", "--attention", "mask.window=32"}), plain);  // the context
  const double narrow = perplexity({"runs/base", "--attention", "mask.window=2"});
  EXPECT_NE(narrow, plain);
  EXPECT_NE(
      perplexity({"runs/base", "--attention", "mask.window=2", "--attention", "mask.sinks=3"}),
      narrow);
  // What a mechanism adds starts as the recipe says: head mixing as the identity.
  EXPECT_NEAR(perplexity({"runs/base", "--attention", "head_mix.before=full"}), plain, 1e-4);
  const Finished told = run({"generate", "runs/base", "line", "--max-tokens", "2", "--attention",
                             "head_mix.before=full"});
  EXPECT_THAT(told.err, HasSubstr("was not trained with: model.layers.0.self_attn.head_mix"));
  const Finished unknown =
      run({"eval", "runs/base", "--text", "text.txt", "--attention", "mask.windw=2"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean 'window'"));
}

TEST_F(AdapterVerb, AttentionsOfOneModelStandSideBySide) {
  train({"name=base"});
  spill(folder_ / "systems.yaml",
        "systems:\n  - name: full\n  - {name: near, attention: [mask.window=4, mask.sinks=1]}\n"
        "  - {name: as many, pairs_of: near}\n");
  const Finished table =
      run({"eval", "runs/base", "--systems", "systems.yaml", "--text", "text.txt", "--lengths",
           "16,32", "--tokens", "128", "--copy", "8", "--speed", "--out", "beside"});
  ASSERT_EQ(table.code, 0) << table.err;
  for (const char* word : {"full", "near", "as many (", "100.0 %", "copy ppl", "writes/s", "Holm"})
    EXPECT_THAT(table.out, HasSubstr(word));
  const auto json = nlohmann::json::parse(slurp(folder_ / "beside/side-by-side.json"));
  ASSERT_EQ(json["systems"].size(), 3u);
  EXPECT_EQ(json["systems"][1]["scores"][1]["length"], 32);
  EXPECT_GT(json["systems"][2]["scores"][0]["speed"]["tokens_per_second"], 0.0);
  EXPECT_THAT(slurp(folder_ / "beside/side-by-side.html"), HasSubstr("as many"));
  const Finished alone = run({"eval", "runs/base", "--systems", "systems.yaml"});
  EXPECT_EQ(alone.code, 2);
  EXPECT_THAT(alone.err, HasSubstr("--text"));
}

TEST_F(AdapterVerb, RefusesWhatCannotBe) {
  train({"name=base"});
  const Finished none = run({"adapter", "export", "runs/base", "peft"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("no adapter"));
  const Finished missing = run({"generate", "runs/base", "a", "--adapter", "nowhere"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr("adapter_config.json"));
  const Finished there = run({"adapter", "import", "runs/base", "nowhere", "runs"});
  EXPECT_EQ(there.code, 2);
  EXPECT_THAT(there.err, HasSubstr("not there yet"));
  const Finished focus = run({"generate", "runs/base", "a", "--focus", "hard"});
  EXPECT_EQ(focus.code, 2);
  EXPECT_THAT(focus.err, HasSubstr("no Focus"));
}

TEST_F(AdapterVerb, FocusIsHardOrOffInGenerateAndHasItsTableInEval) {
  train({"name=groups", "model.attention.focus.gate=log", "model.attention.focus.groups=4",
         "model.attention.focus.window=2", "model.attention.focus.sinks=1", "train.steps=2",
         "model.context=64"});
  const auto text = [&](const std::vector<std::string>& options) {
    std::vector<std::string> arguments{"generate", "runs/groups",  "a longer prompt of some words",
                                       "--quiet",  "--max-tokens", "24"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Finished done = run(arguments);
    EXPECT_EQ(done.code, 0) << done.err;
    return done.out;
  };
  const std::string soft = text({}), hard = text({"--focus", "hard", "--focus-top-k", "1"}),
                    off = text({"--focus", "off"});
  EXPECT_FALSE(soft == hard && hard == off);
  const Finished random = run({"generate", "runs/groups", "a", "--focus", "random"});
  EXPECT_EQ(random.code, 2);
  EXPECT_THAT(random.err, HasSubstr("random"));
  const std::vector<std::string> table{"eval",        "runs/groups", "--text", "text.txt",
                                       "--retention", "--copy",      "8",      "--quiet"};
  const Finished shown = run(table);
  EXPECT_EQ(shown.code, 0) << shown.err;
  for (const char* part : {"top-1 of 4", "top-2 of 4", "top-3 of 4: full attention", "and sinks",
                           "random groups", "soft gate", "copy ppl"})
    EXPECT_THAT(shown.out, HasSubstr(part));
  EXPECT_EQ(shown.out.find("top-4"), std::string::npos);
}

}  // namespace
}  // namespace fovea::testing::adapter_verb_test
