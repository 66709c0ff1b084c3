// Every mechanism trains: its keys reach the model from a recipe, its parameters learn, a run
// resumes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <map>

#include "fovea/config/reader.h"
#include "fovea/train/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/tiny_run.h"

namespace fovea::mechanisms_test {
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
      {"focus",
       R"({"focus": {"gate": "logsig", "groups": 4, "top_k": 1, "window": 2, "sinks": 1}})",
       {"focus.weight", "focus.centroids", "focus.log_strength", "focus.potentials", "focus.mean",
        "focus.scale", "focus.updates"}},
      {"focus that reclusters",
       R"({"focus": {"gate": "log", "groups": 4, "window": 2, "potentials": "batch",
                     "recluster_interval": 5, "balance_weight": 0.1, "centroid_decay": 0.9}})",
       {"focus.weight", "focus.centroids"}},
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

Recipe focus_recipe(const std::filesystem::path& folder) {
  Recipe recipe = tiny_recipe(folder);
  recipe.model.attention.spec.focus = {
      .gate = FocusSpec::Gate::log, .groups = 4, .top_k = 1, .window = 2, .sinks = 1};
  return recipe;
}

// U-20: over a frozen base only W_g, C and the state of the groups change, for every objective.
TEST(Focus, TrainsGroupsAloneOverAFrozenBaseForEveryObjective) {
  for (const char* const objective : {"lm", "kept_mass", "distillation"}) {
    const TemporaryFolder folder;
    Recipe recipe = focus_recipe(folder.path());
    recipe.train.trainable = "focus";
    recipe.train.objective = objective;
    Trainer trainer(recipe);
    const auto before = copy_parameters(trainer.model());
    const TrainResult result = trainer.run();
    for (const auto& [name, x] : copy_parameters(trainer.model())) {
      const bool groups = name.find(".focus.") != std::string::npos;
      EXPECT_EQ(x.equal(before.at(name)), !groups) << objective << ": " << name;
    }
    ASSERT_TRUE(result.evaluation.hard) << objective;
    ASSERT_EQ(result.evaluation.hard->pairs_kept.size(), 2u);
    EXPECT_LT(result.evaluation.hard->pairs_kept[0], 1.0);
    EXPECT_GE(result.evaluation.hard->pairs_kept[0], result.evaluation.hard->distant_kept[0]);
    EXPECT_NE(result.evaluation.hard->sources[0].nll, result.evaluation.sources[0].nll);
    const auto again = EvaluationResult::from_json(result.evaluation.to_json());
    EXPECT_EQ(again.hard->pairs_kept, result.evaluation.hard->pairs_kept);
  }
}

// 11.1: two phases as stages; U-8: straight-through at the end. Telemetry is in metrics.jsonl.
TEST(Focus, TrainsInTwoPhasesWithStraightThroughAtTheEnd) {
  const TemporaryFolder folder;
  Recipe recipe = focus_recipe(folder.path());
  recipe.train.steps = 0;
  recipe.train.stages.resize(2);
  recipe.train.stages[0] = {
      .name = "groups", .steps = 4, .trainable = "focus", .objective = "kept_mass"};
  recipe.train.stages[1] = {.name = "all", .steps = 4, .straight_through_from = 0.5};
  Trainer trainer(recipe);
  const auto before = copy_parameters(trainer.model());
  const TrainResult result = trainer.run();
  EXPECT_EQ(result.steps, 8);
  const auto after = copy_parameters(trainer.model());
  EXPECT_FALSE(after.at("model.norm.weight").equal(before.at("model.norm.weight")));
  // U-21: the potentials go on as they were, through both phases.
  EXPECT_EQ(after.at("model.layers.1.self_attn.focus.updates").item<float>(), 8.0f);
  const std::string metrics = read_file(folder.path() / "run" / "metrics.jsonl");
  for (const char* key : {"focus/largest_hard", "focus/centroid_cosine", "focus/effective_rank",
                          "focus/hidden_cosine", "focus/hard/pairs_kept", "focus/hard/perplexity"})
    EXPECT_NE(metrics.find(key), std::string::npos) << key;
}

TEST(Mechanisms, TheNamedOneLearnsAlone) {
  const TemporaryFolder folder;
  Recipe recipe = tiny_recipe(folder.path());
  recipe.model.attention.spec.temperature.kind = TemperatureSpec::Kind::learned;
  recipe.model.attention.spec.sink_logit = true;
  recipe.train.trainable = "temperature";
  Trainer trainer(recipe);
  const auto before = copy_parameters(trainer.model());
  trainer.run();
  bool any = false;
  for (const auto& [name, x] : copy_parameters(trainer.model())) {
    const bool temperature = name.find(".temperature.") != std::string::npos;
    const bool moved = !x.equal(before.at(name));
    EXPECT_TRUE(temperature || !moved) << name;
    any |= moved;
  }
  EXPECT_TRUE(any);
  recipe.run_folder = (folder.path() / "other").string();
  recipe.train.trainable = "head_mix";
  EXPECT_ERROR(ConfigError, Trainer(recipe), "trainable", "head_mix");
}

TEST(Focus, RecipesThatCannotTrainAreRefusedByKey) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::function<void(Recipe&)>& change,
                           const std::vector<std::string>& parts) {
    Recipe recipe = focus_recipe(folder.path());
    change(recipe);
    return throws_naming<ConfigError>([&] { (void)recipe.resolved(); }, parts);
  };
  EXPECT_TRUE(refused([](Recipe& r) { r.train.objective = "kept_mass"; },
                      {"train.objective", "trainable: focus"}));
  EXPECT_TRUE(
      refused([](Recipe& r) { r.train.objective = "kept_mas"; },
              {"train.objective", "lm, kept_mass, distillation", "did you mean 'kept_mass'"}));
  EXPECT_TRUE(refused(
      [](Recipe& r) {
        r.model.attention.spec.focus = {};
        r.train.trainable = "focus";
      },
      {"train.trainable", "focus.gate"}));
  EXPECT_TRUE(refused([](Recipe& r) { r.train.straight_through_from = 1.5; },
                      {"straight_through_from", "1.5"}));
  EXPECT_TRUE(refused([](Recipe& r) { r.train.trainable = "inherit"; }, {"inherit"}));
}

}  // namespace
}  // namespace fovea::mechanisms_test
