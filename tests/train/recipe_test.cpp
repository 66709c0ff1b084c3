// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/config/reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/tiny_run.h"

namespace fovea::recipe_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::tiny_recipe;

class RecipeFile : public ::testing::Test {
 protected:
  LoadedRecipe load(const std::string& text, const std::vector<std::string>& overrides = {}) {
    write_file(folder_ / "r.yaml", text);
    return load_recipe(folder_ / "r.yaml", overrides);
  }
  testing::TemporaryFolder folder_;
};

TEST_F(RecipeFile, KeysAndOverridesArriveAndCompareIsPassedThrough) {
  const LoadedRecipe loaded = load(
      "name: a\nmodel: {layers: 3}\ntrain:\n  steps: 10\n  schedule: {kind: linear}\n"
      "compare:\n  variants: [{name: x, anything: [1, 2]}]\n",
      {"train.steps=20", "model.width=32", "train.dtype=bfloat16"});
  EXPECT_EQ(loaded.recipe.name, "a");
  EXPECT_EQ(loaded.recipe.model.layers, 3);
  EXPECT_EQ(loaded.recipe.model.width, 32);
  EXPECT_EQ(loaded.recipe.train.steps, 20);
  EXPECT_EQ(loaded.recipe.train.schedule.kind, ScheduleConfig::Kind::linear);
  EXPECT_EQ(loaded.recipe.train.dtype, DtypeChoice::bfloat16);
  ASSERT_NE(loaded.compare.find("variants"), nullptr);
  EXPECT_EQ(loaded.compare.find("variants")->items.size(), 1u);
}

TEST_F(RecipeFile, UnknownDuplicateAndMistypedKeysNameTheLineAndTheNearestKey) {
  EXPECT_ERROR(ConfigError, load("train:\n  steps: 1\n  batch_row: 3\n"), "r.yaml:3",
               "train.batch_row", "did you mean 'batch_rows'");
  EXPECT_ERROR(ConfigError, load("train:\n  steps: 1\n  steps: 3\n"), "r.yaml:3", "twice");
  EXPECT_ERROR(ConfigError, load("train: {steps: many}\n"), "train.steps", "many");
  EXPECT_ERROR(ConfigError, load("train: {nan_policy: stopp}\n"), "did you mean 'stop'");
  EXPECT_ERROR(ConfigError, load("name: a\n", {"train.optimiser.clip=1"}), "train.optimiser");
}

TEST_F(RecipeFile, WhatIsWrittenOutReadsBackTheSame) {
  Recipe recipe = tiny_recipe(folder_.path());
  recipe.train.stages = {{.name = "long", .steps = 3, .rope_theta = 5e5, .carry_optimizer = true}};
  recipe.train.steps = 0;
  write_file(folder_ / "r.yaml", fields_to_yaml(recipe));
  const Recipe read = load_recipe(folder_ / "r.yaml").recipe;
  EXPECT_EQ(fields_to_json(read).dump(), fields_to_json(recipe).dump());
}

TEST_F(RecipeFile, AStageTakesTheScheduleKeysItLeavesOut) {
  const auto stages = load(
                          "train:\n"
                          "  schedule: {kind: linear, warmup_steps: 7, final_ratio: 0.3}\n"
                          "  stages:\n"
                          "    - {steps: 1}\n"
                          "    - {steps: 1, schedule: {kind: constant}}\n"
                          "    - {steps: 1, schedule: {warmup_fraction: 0.5}}\n")
                          .recipe.train.stages;
  ASSERT_EQ(stages.size(), 3u);
  EXPECT_EQ(stages[0].schedule.kind, ScheduleConfig::Kind::linear);
  EXPECT_EQ(stages[0].schedule.warmup_steps, 7);
  EXPECT_EQ(stages[1].schedule.kind, ScheduleConfig::Kind::constant);
  EXPECT_EQ(stages[1].schedule.final_ratio, 0.3);
  EXPECT_EQ(stages[2].schedule.warmup_steps, -1);
  EXPECT_EQ(stages[2].schedule.warmup_fraction, 0.5);
}

TEST_F(RecipeFile, ImpossibleValuesAreRefusedWithTheirDottedKey) {
  const auto refused = [&](auto change, const std::string& part) {
    Recipe recipe = tiny_recipe(folder_.path());
    change(recipe);
    EXPECT_ERROR(ConfigError, recipe.resolved(), part);
  };
  EXPECT_NO_THROW(tiny_recipe(folder_.path()).resolved());
  refused([](Recipe& r) { r.model.heads = 3; }, "heads");
  refused([](Recipe& r) { r.model.heads = 4, r.model.kv_heads = 3; }, "kv_heads");
  refused([](Recipe& r) { r.model.layers = 0; }, "layers");
  refused([](Recipe& r) { r.model.width = -16; }, "width");
  refused([](Recipe& r) { r.train.tokens = 5; }, "exactly one");
  refused([](Recipe& r) { r.train.steps = 0; }, "exactly one");
  refused([](Recipe& r) { r.train.steps = -1; }, "train.steps");
  refused([](Recipe& r) { r.train.batch_rows = 0; }, "train.batch_rows");
  refused([](Recipe& r) { r.train.accumulation = 0; }, "train.accumulation");
  refused([](Recipe& r) { r.train.sequence_length = 17; }, "model.context");
  refused([](Recipe& r) { r.train.optimizer.beta1 = 1.0; }, "train.optimizer.beta1");
  refused([](Recipe& r) { r.train.optimizer.learning_rate = -1; }, "learning_rate");
  refused([](Recipe& r) { r.train.optimizer.eps = 0; }, "train.optimizer.eps");
  refused([](Recipe& r) { r.train.schedule.final_ratio = 2; }, "train.schedule.final_ratio");
  refused([](Recipe& r) { r.train.keep_checkpoints = 0; }, "train.keep_checkpoints");
  refused([](Recipe& r) { r.train.stages = {{.steps = 1}}; }, "with 'train.stages'");
  refused([](Recipe& r) { r.train.steps = 0, r.train.stages.resize(1); }, "train.stages.0.steps");
  refused([](Recipe& r) { r.data.sources.clear(); }, "data.sources");
  refused([](Recipe& r) { r.name = "../../victim", r.run_folder.clear(); }, "runs/NAME");
}

TEST_F(RecipeFile, ProductsOfSizesStayFarFromTheEndOfTheCounters) {
  const auto refused = [&](auto change, const std::string& part) {
    Recipe recipe = tiny_recipe(folder_.path());
    change(recipe);
    EXPECT_ERROR(ConfigError, recipe.resolved(), part, "tokens");
  };
  refused([](Recipe& r) { r.train.batch_rows = r.train.accumulation = 1 << 20; }, "'train'");
  refused([](Recipe& r) { r.train.steps = 1'000'000'000'000, r.train.batch_rows = 1 << 20; },
          "'train.steps'");
  refused(
      [](Recipe& r) {
        r.train.steps = 0;
        r.train.stages = {{.steps = 1}, {.steps = 1, .sequence_length = int64_t{1} << 31}};
        r.train.accumulation = 1 << 10;
      },
      "'train.stages.1'");
}

TEST_F(RecipeFile, OnlyKeysThatChangeTheNumbersAreDifferences) {
  const Recipe recipe = tiny_recipe(folder_.path());
  Recipe other = recipe;
  other.train.steps = 500;
  other.train.checkpoint_interval = 7;
  other.run_folder = "elsewhere";
  EXPECT_THAT(recipe_differences(fields_to_json(recipe), fields_to_json(other)), IsEmpty());
  other.train.optimizer.beta2 = 0.98;
  other.model.layers = 4;
  EXPECT_THAT(recipe_differences(fields_to_json(recipe), fields_to_json(other)),
              ElementsAre("model.layers: 4, was 2", "train.optimizer.beta2: 0.98, was 0.95"));
  EXPECT_THAT(recipe_differences(nlohmann::ordered_json::object(), fields_to_json(recipe)),
              ::testing::Contains(HasSubstr("absent")));
}

}  // namespace
}  // namespace fovea::recipe_test
