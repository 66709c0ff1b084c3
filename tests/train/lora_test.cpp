// Training an adapter: the base stays as it is, the loss falls, runs resume, beside any mechanism
// (spec 5).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/lora.h"

#include <gtest/gtest.h>

#include <map>

#include "fovea/config/reader.h"
#include "fovea/train/run_plan.h"
#include "fovea/train/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/tiny_run.h"

namespace fovea::lora_test {
namespace {

using namespace fovea::testing;

Recipe lora_recipe(const std::filesystem::path& folder, const std::string& trainable = "lora") {
  Recipe recipe = tiny_recipe(folder);
  recipe.model.lora = {.rank = 4, .alpha = 16.0, .dropout = 0.1, .targets = {"all-linear"}};
  recipe.train.trainable = trainable;
  recipe.train.schedule.kind = ScheduleConfig::Kind::constant;
  return recipe;
}

std::map<std::string, at::Tensor> copy_parameters(const Transformer& model) {
  std::map<std::string, at::Tensor> copy;
  for (const Parameter& p : model.parameters().all()) copy[p.name] = p.value.detach().clone();
  return copy;
}

TEST(LoraTraining, LowersTheLossAndLeavesEveryBitOfTheBase) {
  const TemporaryFolder folder;
  Recipe recipe = lora_recipe(folder.path());
  recipe.train.steps = 60;
  Trainer trainer(recipe);
  const auto before = copy_parameters(trainer.model());
  double first = 0.0;
  const TrainResult result = trainer.run();
  Recipe none = tiny_recipe(folder.path());
  none.run_folder = (folder.path() / "none").string();
  none.train.steps = 1;
  none.train.optimizer.learning_rate = 0.0;
  first = Trainer(none).run().evaluation.total().loss();
  EXPECT_LT(result.evaluation.total().loss(), first - 0.2);
  for (const auto& [name, x] : copy_parameters(trainer.model()))
    EXPECT_EQ(x.equal(before.at(name)), !is_lora(name)) << name;
}

TEST(LoraTraining, BeginsFromABaseAndResumesToTheSameBits) {
  const TemporaryFolder folder;
  Recipe base = tiny_recipe(folder.path());
  base.run_folder = (folder.path() / "base").string();
  Trainer(base).run();
  Recipe recipe = lora_recipe(folder.path());
  recipe.train.init_from = base.run_folder;
  Recipe whole = recipe;
  whole.run_folder = (folder.path() / "whole").string();
  Trainer trainer(whole);
  const double loss = trainer.run().loss;
  recipe.train.steps = 5;
  Trainer(recipe).run();
  recipe.train.steps = 12;
  Trainer again(recipe);
  EXPECT_EQ(again.step(), 5);
  EXPECT_EQ(again.run().loss, loss);
  const auto expected = copy_parameters(trainer.model());
  for (const auto& [name, x] : copy_parameters(again.model()))
    EXPECT_TRUE(x.equal(expected.at(name))) << name;
}

// Beside every mechanism, alone or with it: exactly the chosen parameters move.
TEST(LoraTraining, GoesBesideEveryMechanism) {
  struct Case {
    const char* keys;
    std::string trainable;
    const char* also;  // part of names that move beside A and B
  };
  for (const Case& c :
       {Case{R"({"focus": {"gate": "log", "groups": 4, "window": 2, "top_k": 1, "sinks": 1}})",
             "focus+lora", ".focus."},
        Case{R"({"focus": {"gate": "log", "groups": 4, "window": 2, "top_k": 1, "sinks": 1}})",
             "focus", ".focus."},
        Case{R"({"multi_token": {"before": {"queries": 2, "keys": 3}},
                 "head_output": {"norm": "rms", "gate": "scalar"}})",
             "added", "key_query_before"},
        Case{R"({"differential": true})", "lora", nullptr},
        Case{R"({"temperature": {"kind": "learned"}})", "added", "temperature.bias"}}) {
    const TemporaryFolder folder;
    Recipe recipe = lora_recipe(folder.path(), c.trainable);
    recipe.model.kv_heads = 2;
    read_fields(parse_json(c.keys, "keys"), recipe.model.attention);
    Trainer trainer(recipe);
    const auto before = copy_parameters(trainer.model());
    trainer.run();
    bool also_moved = c.also == nullptr;
    for (const auto& [name, x] : copy_parameters(trainer.model())) {
      const Parameter* p = trainer.model().parameters().find(name);
      const bool moved = !x.equal(before.at(name));
      if (is_lora(name)) {
        EXPECT_EQ(moved, c.trainable != "focus") << c.keys << name;
      }
      if (p->origin == Parameter::Origin::base) {
        EXPECT_FALSE(moved) << c.keys << name;
      }
      also_moved |= moved && c.also != nullptr && name.find(c.also) != std::string::npos;
    }
    EXPECT_TRUE(also_moved) << c.keys;
  }
}

TEST(LoraTraining, RecipesThatCannotTrainAreRefusedByKey) {
  const TemporaryFolder folder;
  Recipe recipe = lora_recipe(folder.path(), "all");
  EXPECT_ERROR(ConfigError, recipe.resolved(), "model.lora", "train.trainable", "frozen");
  recipe.train.trainable = "focus+lora";
  EXPECT_ERROR(ConfigError, recipe.resolved(), "focus+lora", "focus.gate");
  recipe = tiny_recipe(folder.path());
  recipe.train.trainable = "lora";
  EXPECT_ERROR(ConfigError, recipe.resolved(), "trainable: lora", "model.lora.rank");
}

TEST(LoraTraining, PlansCountWhatLearnsAndTheMemoryOfIt) {
  const TemporaryFolder folder;
  const RunPlan plan = plan_run(lora_recipe(folder.path()), 259);
  // q, o: 16 + 16; k, v: 16 + 8; gate, up, down: 16 + 32; times r = 4, two layers.
  EXPECT_EQ(plan.parameters.added, 2 * 4 * (2 * 32 + 2 * 24 + 3 * 48));
  EXPECT_EQ(plan.parameters.trainable, plan.parameters.added);
  EXPECT_EQ(plan.memory.optimizer, 8 * plan.parameters.added);
  const RunPlan full = plan_run(tiny_recipe(folder.path()), 259);
  EXPECT_EQ(full.parameters.trainable, full.parameters.total());
  EXPECT_LT(plan.training_per_token / plan.forward_per_token,
            full.training_per_token / full.forward_per_token);
}

}  // namespace
}  // namespace fovea::lora_test
