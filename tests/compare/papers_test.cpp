// The papers' recipes: every variant plans, and has the parameters that the papers count (spec 3.7,
// 11.1, 13.7, 13.8, 13.13, 13.17).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "fovea/compare/compare.h"
#include "fovea/compare/config.h"
#include "fovea/train/run_plan.h"

namespace fovea::papers_test {
namespace {

const std::string kPapers = FOVEA_SOURCE_DIR "/recipes/papers/";

std::map<std::string, RunPlan> plans_of(const std::string& path) {
  const LoadedRecipe loaded = load_recipe(path);
  std::map<std::string, RunPlan> plans{{"", plan_run(loaded.recipe, 0)}};
  if (loaded.compare.kind == ConfigNode::Kind::null) return plans;
  CompareConfig config = read_compare_config(loaded.compare);
  config.seeds.resize(1);
  for (const PlannedRun& run : plan_runs(loaded, config, "", 0))
    plans.emplace(run.variant, plan_run(run.recipe, 0));
  return plans;
}

int64_t added(const std::map<std::string, RunPlan>& plans, const char* variant) {
  return plans.at(variant).parameters.total() - plans.at("transformer").parameters.total();
}

TEST(Papers, EveryVariantOfEveryRecipePlans) {
  for (const auto& entry : std::filesystem::directory_iterator(kPapers)) {
    const auto plans = plans_of(entry.path());
    for (const auto& [variant, plan] : plans) {
      EXPECT_GT(plan.parameters.trainable, 0) << entry.path() << ' ' << variant;
      EXPECT_GT(plan.tokens, 0) << entry.path() << ' ' << variant;
    }
  }
}

// F-8, 13.13: the Focal paper's Tables 3 and 4, row by row. Sizes count what the names say, within
// a tenth: the paper does not print its vocabulary.
TEST(Papers, TheFocalPapersSixModelsHaveItsSizesAndSettings) {
  struct Size {
    const char* name;
    double parameters;
    int64_t width, ffn_width, heads, layers;
    double rate;
  };
  for (const Size& s : {Size{"focal-400m", 400e6, 1024, 3072, 8, 24, 4e-3},
                        Size{"focal-777m", 777e6, 1536, 4096, 12, 24, 2e-3},
                        Size{"focal-1.3b", 1.3e9, 2048, 5504, 16, 24, 1e-3},
                        Size{"focal-2.7b", 2.7e9, 2560, 6912, 20, 32, 5e-4},
                        Size{"focal-6.7b", 6.7e9, 4096, 11008, 32, 32, 4e-4},
                        Size{"focal-9.5b", 9.5e9, 4608, 12288, 36, 36, 4e-4}}) {
    const LoadedRecipe loaded = load_recipe(kPapers + s.name + ".yaml");
    const CompareConfig config = read_compare_config(loaded.compare);
    for (const PlannedRun& run : plan_runs(loaded, config, "", 0)) {
      const ModelConfig& model = run.recipe.model;
      EXPECT_EQ(model.width, s.width) << s.name;
      EXPECT_EQ(model.ffn_width, s.ffn_width) << s.name;
      EXPECT_EQ(model.heads, s.heads) << s.name;
      EXPECT_EQ(model.layers, s.layers) << s.name;
      EXPECT_EQ(run.recipe.train.optimizer.learning_rate, s.rate) << s.name;
      EXPECT_EQ(run.recipe.train.schedule.warmup_steps, 2000) << s.name;
      const RunPlan plan = plan_run(run.recipe, 0);
      EXPECT_EQ(plan.tokens, 100000 * int64_t{262144}) << s.name;
      EXPECT_NEAR(static_cast<double>(plan.parameters.total()) / s.parameters, 1.0, 0.1) << s.name;
    }
  }
}

// 13.7, 13.8, 1.3: the Multi-Token paper's Table 8, to the last parameter.
TEST(Papers, TheMultiTokenPapersFourModelsHaveItsParameters) {
  const auto plans = plans_of(kPapers + "mta-880m.yaml");
  EXPECT_EQ(plans.at("transformer").parameters.total(), 876553728);
  EXPECT_EQ(added(plans, "mta"), 29592);
  EXPECT_EQ(added(plans, "differential"), 13824);
  EXPECT_EQ(added(plans, "talking-heads"), 12288);
  EXPECT_EQ(plans.at("mta").tokens, 400000 * int64_t{262144});
}

// The same formula at the other sizes: L_kq H cq ck each, 2 L H ch, L (2 d + 1).
TEST(Papers, TheOtherSizesFollowTheSameFormula) {
  struct Size {
    const char* name;
    int64_t layers, heads, group, convolved, head_dim;
  };
  for (const Size& s : {Size{"mta-300m", 20, 16, 16, 5, 64}, Size{"mta-550m", 24, 10, 10, 6, 128},
                        Size{"mta-1b", 24, 16, 16, 6, 128}}) {
    const auto plans = plans_of(kPapers + s.name + ".yaml");
    EXPECT_EQ(added(plans, "mta"), 2 * s.convolved * s.heads * 66 +
                                       2 * s.layers * s.heads * s.group +
                                       s.layers * (2 * s.head_dim + 1))
        << s.name;
    EXPECT_EQ(added(plans, "differential"), s.layers * 6 * s.head_dim) << s.name;
    EXPECT_EQ(added(plans, "talking-heads"), 2 * s.layers * s.heads * s.heads) << s.name;
  }
}

// 11.1, 5.1: what learns over a frozen base.
TEST(Papers, TheFocusPapersRunsTrainAsManyParametersAsItCounts) {
  const auto gpt2 = plans_of(kPapers + "focus-gpt2.yaml");
  EXPECT_EQ(gpt2.at("sound").parameters.total(), 124439808 + 148224);
  for (const auto& [variant, count] : std::map<std::string, int64_t>{{"sound", 148224},
                                                                     {"paper", 148224},
                                                                     {"kept-mass", 148224},
                                                                     {"d_g-32", 296448},
                                                                     {"d_g-128", 1185792},
                                                                     {"d_g-768", 7114752},
                                                                     {"lora-4", 147456},
                                                                     {"lora-16", 589824}})
    EXPECT_EQ(gpt2.at(variant).parameters.trainable, count) << variant;
  const auto mistral = plans_of(kPapers + "focus-mistral-7b.yaml");
  EXPECT_EQ(mistral.at("sound").parameters.trainable, 32 * (16 * 4096 + 4 * 16));
  EXPECT_EQ(mistral.at("lora-4").parameters.trainable, 1703936);
  EXPECT_EQ(mistral.at("lora-4").parameters.total(), 7241732096 + 1703936);
  EXPECT_EQ(plans_of(kPapers + "focus-mistral-7b-instruct.yaml").at("").parameters.trainable,
            2098176);
  const auto full = plans_of(kPapers + "focus-gpt2-full.yaml").at("").parameters;
  EXPECT_EQ(full.trainable, full.total());
}

// M-21, M-14: the long stage changes theta alone, with warm-up 50 and no decay; the toy task
// convolves logits alone.
TEST(Papers, TheLongStageAndTheToyTaskHaveThePapersSettings) {
  const Recipe longer = load_recipe(kPapers + "mta-880m-4k.yaml").recipe;
  const Recipe shorter = load_recipe(kPapers + "mta-880m.yaml").recipe;
  EXPECT_EQ(shorter.model.rope.theta, 1e5);
  EXPECT_EQ(shorter.model.context, 2048);
  EXPECT_EQ(longer.model.rope.theta, 5e5);
  EXPECT_EQ(longer.model.context, 4096);
  EXPECT_EQ(longer.model.rope.scaling, RopeSpec{}.scaling);
  EXPECT_EQ(longer.train.optimizer.weight_decay, 0.0);
  EXPECT_EQ(longer.train.schedule.warmup_steps, 50);
  EXPECT_TRUE(shorter.train.optimizer.decay_all);  // lingua: on all parameters
  const LoadedRecipe toy = load_recipe(FOVEA_SOURCE_DIR "/recipes/laptop/find-block.yaml");
  CompareConfig config = read_compare_config(toy.compare);
  for (const PlannedRun& run : plan_runs(toy, config, "", 259)) {
    if (run.variant != "multi-token") continue;
    const AttentionSettings& a = run.recipe.model.attention;
    EXPECT_EQ(a.spec.multi_token.before.queries, 2);
    EXPECT_FALSE(a.spec.multi_token.after.active());
    EXPECT_EQ(a.spec.head_mix, HeadMixSpec{});
    EXPECT_FALSE(a.spec.head_output.active());
  }
}

}  // namespace
}  // namespace fovea::papers_test
