// Every mechanism trains: its keys reach the model from a recipe, its parameters learn, a run
// resumes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <map>

#include "fovea/config/reader.h"
#include "fovea/train/trainer.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/tiny_run.h"

namespace fovea {
namespace {

using namespace fovea::testing;

struct Mechanism {
  std::string name, keys;               // keys of model.attention as JSON
  std::vector<std::string> parameters;  // that must have moved in layer 1
};

std::vector<Mechanism> mechanisms() {
  return {
      {"multi-token",
       R"({"multi_token": {"before": {"queries": 2, "keys": 3}, "after": {"queries": 2, "keys": 4}},
           "head_mix": {"before": "full", "after": "groups", "group": 2},
           "head_output": {"norm": "rms", "gate": "scalar"}})",
       {"key_query_before.weight", "key_query_after.weight", "head_mix_before.weight",
        "head_mix_after.weight", "head_norm.weight", "head_gate.weight", "head_gate.bias"}},
      {"talking-heads",
       R"({"head_mix": {"before": "full", "after": "full"}})",
       {"head_mix_before.weight", "head_mix_after.weight"}},
      {"differential",
       R"({"differential": true})",
       {"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2", "head_norm.weight"}},
  };
}

std::map<std::string, at::Tensor> copy_parameters(const Transformer& model) {
  std::map<std::string, at::Tensor> copy;
  for (const Parameter& p : model.parameters().all()) copy[p.name] = p.value.detach().clone();
  return copy;
}

TEST(Mechanisms, TrainFromARecipeAndResumeWithTheSameNumbers) {
  for (const Mechanism& mechanism : mechanisms()) {
    const TemporaryFolder folder;
    Recipe recipe = tiny_recipe(folder.path());
    recipe.model.kv_heads = 2;
    read_fields(parse_json(mechanism.keys, mechanism.name), recipe.model.attention);
    recipe.train.schedule.kind = ScheduleConfig::Kind::constant;
    Recipe whole = recipe;
    whole.run_folder = (folder.path() / "whole").string();
    Trainer trainer(whole);
    const auto before = copy_parameters(trainer.model());
    const TrainResult result = trainer.run();
    const auto after = copy_parameters(trainer.model());
    for (const std::string& name : mechanism.parameters) {
      const std::string full = "model.layers.1.self_attn." + name;
      ASSERT_TRUE(after.contains(full)) << mechanism.name << ": " << full;
      EXPECT_FALSE(after.at(full).equal(before.at(full))) << mechanism.name << ": " << full;
    }
    recipe.train.steps = 6;
    Trainer(recipe).run();
    recipe.train.steps = 12;
    Trainer again(recipe);
    EXPECT_EQ(again.step(), 6);
    EXPECT_EQ(again.run().loss, result.loss) << mechanism.name;
  }
}

}  // namespace
}  // namespace fovea
