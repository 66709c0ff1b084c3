// Plans against counts that are known, formulas by hand, and the model that is really built.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/run_plan.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "fovea/nn/transformer.h"
#include "tests/support/tiny_model.h"

namespace fovea::run_plan_test {
namespace {

Recipe recipe_of(int64_t width, int64_t layers, int64_t heads, int64_t ffn, int64_t vocabulary,
                 bool tied) {
  Recipe recipe;
  recipe.data.sources.push_back({});
  recipe.data.sources.back().path = "text.txt";
  recipe.model.width = width;
  recipe.model.layers = layers;
  recipe.model.heads = heads;
  recipe.model.ffn_width = ffn;
  recipe.model.vocab_size = vocabulary;
  recipe.model.tied = tied;
  recipe.model.context = 2048;
  recipe.train.steps = 10;
  return recipe;
}

const RuleCheck& rule(const RunPlan& plan, std::string_view begins) {
  for (const RuleCheck& r : plan.rules) {
    if (r.rule.starts_with(begins)) return r;
  }
  throw std::runtime_error("no such rule");
}

TEST(RunPlan, CountsTheParametersOfThePapersExactly) {
  const auto count = [](const Recipe& r) { return plan_run(r, 0).parameters.total(); };
  EXPECT_EQ(count(recipe_of(1536, 24, 16, 4096, 128'256, true)), 876'553'728);  // MTA's 880M, 3.7
  Recipe focal = recipe_of(1024, 24, 8, 3072, 32'000, false);                   // 10.3
  focal.model.qk_norm = QkNorm::head_rms;
  EXPECT_NEAR(static_cast<double>(count(focal)), 393e6, 0.5e6);
  focal = recipe_of(1536, 24, 12, 4096, 32'000, false);
  focal.model.qk_norm = QkNorm::head_rms;
  EXPECT_NEAR(static_cast<double>(count(focal)), 778e6, 0.5e6);
}

// 66 weights a kernel, 16 a mix, for every pair and head; Differential's maps have values of 2 d.
TEST(RunPlan, CountsTheWorkOfEveryStageThatJoinsPairs) {
  const Recipe plain = recipe_of(64, 2, 4, 128, 300, true);
  const double pairs = plan_run(plain, 0).visible_keys * 2;  // of a token, both layers
  const auto more = [&](const std::function<void(AttentionSettings&)>& set) {
    Recipe recipe = plain;
    set(recipe.model.attention);
    return (plan_run(recipe, 0).attention_per_token - plan_run(plain, 0).attention_per_token) /
           (2.0 * pairs);
  };
  EXPECT_DOUBLE_EQ(more([](AttentionSettings& a) {
                     a.spec.multi_token = {.before = {6, 11}, .after = {2, 3}};
                     a.spec.head_mix = {HeadMixSpec::Kind::full, HeadMixSpec::Kind::groups, 2};
                   }),
                   4.0 * (66 + 6 + 4 + 2));
  EXPECT_DOUBLE_EQ(more([](AttentionSettings& a) { a.spec.differential = true; }), 4.0 * 16);
  EXPECT_DOUBLE_EQ(more([](AttentionSettings& a) { a.spec.focus.gate = FocusSpec::Gate::log; }),
                   8.0);
}

TEST(RunPlan, CountsWhatTheBuiltModelHas) {
  Recipe recipe = recipe_of(48, 2, 4, 96, 259, false);
  recipe.model.kv_heads = 2;
  recipe.model.qk_norm = QkNorm::head_rms;
  recipe.model.attention.spec.temperature.kind = TemperatureSpec::Kind::learned;
  recipe.model.attention.spec.sink_logit = true;
  const RunPlan plan = plan_run(recipe, 0);
  const Transformer built(plan.model, 0);
  EXPECT_EQ(plan.parameters.total(), built.parameters().count());
  EXPECT_EQ(plan.parameters.added, 2 * (48 + 1 + 4));
  EXPECT_EQ(plan.parameters.embedding, 259 * 48);
  EXPECT_EQ(plan.parameters.head, 259 * 48);
  EXPECT_EQ(plan.parameters.feed_forward, 2 * 3 * 48 * 96);
  EXPECT_EQ(plan.parameters.attention, 2 * (2 * 48 * 48 + 2 * 48 * 24));
}

TEST(RunPlan, OperationsAreTwoAMultipliedWeightAndFourAHeadWidthAndKey) {
  Recipe recipe = recipe_of(64, 2, 4, 128, 300, true);
  recipe.model.context = 64;
  recipe.train.batch_rows = 3;
  recipe.train.accumulation = 2;
  const RunPlan plan = plan_run(recipe, 0);
  const double matrices = 2.0 * (4 * 64 * 64 + 3 * 64 * 128) + 300 * 64;
  EXPECT_DOUBLE_EQ(plan.visible_keys, 32.5);
  EXPECT_DOUBLE_EQ(plan.attention_per_token, 4.0 * 64 * 32.5 * 2);
  EXPECT_DOUBLE_EQ(plan.forward_per_token, 2.0 * matrices + plan.attention_per_token);
  EXPECT_DOUBLE_EQ(plan.training_per_token, 3.0 * plan.forward_per_token);
  EXPECT_EQ(plan.step_tokens, 3 * 2 * 64);
  EXPECT_EQ(plan.tokens, 10 * 3 * 2 * 64);
  recipe.model.attention.spec.mask.window = 4;
  EXPECT_DOUBLE_EQ(plan_run(recipe, 0).visible_keys, (1 + 2 + 3 + 61 * 4) / 64.0);
  recipe.train.gradient_checkpointing = true;
  EXPECT_DOUBLE_EQ(plan_run(recipe, 0).training_per_token,
                   4.0 * plan_run(recipe, 0).forward_per_token);
}

// Pairs and reach by looking at each (spec 4.1, 4.6).
TEST(RunPlan, CountsTheKeysOfLongformerAndStreaming) {
  Recipe recipe = recipe_of(64, 2, 4, 128, 300, true);
  recipe.model.context = 64;
  EXPECT_EQ(plan_run(recipe, 0).receptive_field, 64);
  AttentionSettings& a = recipe.model.attention;
  a.spec.longformer = {
      .window = 3, .dilation = {1, 1, 2, 5}, .globals = 2, .global_positions = {1, 20}};
  double pairs = 0.0;
  for (const int64_t d : {1, 1, 2, 5}) {
    for (int64_t i = 0; i < 64; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        const auto global = [](int64_t n) { return n < 2 || n == 20; };
        pairs += ((i - j) % d == 0 && (i - j) / d <= 3) || global(i) || global(j) ? 0.25 : 0.0;
      }
    }
  }
  EXPECT_DOUBLE_EQ(plan_run(recipe, 0).visible_keys, pairs / 64.0);
  EXPECT_EQ(plan_run(recipe, 0).receptive_field, 1 + 2 * 15);
  a.spec.longformer = {};
  a.spec.streaming = {.recent = 4, .start = 1};
  EXPECT_DOUBLE_EQ(plan_run(recipe, 0).visible_keys, (1 + 2 + 3 + 4 + 60 * 5) / 64.0);
  EXPECT_EQ(plan_run(recipe, 0).receptive_field, 1 + 2 * 3);
}

TEST(RunPlan, FewerKvHeadsDivideTheCacheAndRaiseItsIntensity) {
  Recipe recipe = recipe_of(512, 8, 8, 1344, 259, true);
  recipe.model.kv_heads = 2;
  const RunPlan plan = plan_run(recipe, 0);
  ASSERT_EQ(plan.decode.size(), 3u);
  EXPECT_EQ(plan.decode[0].name, "MHA");
  EXPECT_EQ(plan.decode[2].name, "MQA");
  EXPECT_TRUE(plan.decode[1].is_model);
  EXPECT_EQ(plan.decode[0].cache_bytes, 2 * 512 * 8 * 2048 * 2);
  EXPECT_EQ(plan.decode[0].cache_bytes, 4 * plan.decode[1].cache_bytes);
  // bfloat16: q.k and p.v are four operations for the four bytes of a key's and a value's element
  EXPECT_DOUBLE_EQ(plan.decode[0].intensity_of_cache, 1.0);
  EXPECT_DOUBLE_EQ(plan.decode[1].intensity_of_cache, 4.0);
  EXPECT_DOUBLE_EQ(plan.decode[2].intensity_of_cache, 8.0);
}

TEST(RunPlan, MemoryIsFourBytesAWeightFourAGradientAndEightOfMoments) {
  const RunPlan plan = plan_run(recipe_of(512, 8, 8, 1344, 259, true), 0);
  const int64_t n = plan.parameters.total();
  EXPECT_EQ(plan.memory.gradients, 4 * n);
  EXPECT_EQ(plan.memory.optimizer, 8 * n);
  EXPECT_GT(plan.memory.weights, 4 * n);
  EXPECT_GT(plan.memory.activations, 0);
  Recipe recomputed = recipe_of(512, 8, 8, 1344, 259, true);
  recomputed.train.gradient_checkpointing = true;
  EXPECT_LT(plan_run(recomputed, 0).memory.activations, plan.memory.activations / 3);
}

TEST(RunPlan, SizesThatNoMachineHoldsArePlannedAtOnce) {
  Recipe recipe = recipe_of(4096, 1024, 32, 11'008, 4'000'000, false);
  recipe.model.context = int64_t{1} << 31;
  recipe.train.batch_rows = 256;
  for (const Positions positions : {Positions::rope, Positions::sinusoidal, Positions::learned}) {
    recipe.model.positions = positions;
    const RunPlan plan = plan_run(recipe, 0);
    EXPECT_GT(plan.memory.total(), int64_t{1} << 55);
    EXPECT_NEAR(plan.visible_keys, static_cast<double>(recipe.model.context) / 2.0, 1.0);
  }
}

TEST(RunPlan, RulesTellTheUsualFromTheUnusualAndTheWrong) {
  Recipe recipe = recipe_of(4096, 32, 32, 11'008, 32'000, false);  // LLaMA 7B
  recipe.train.optimizer.learning_rate = 3e-4;
  RunPlan plan = plan_run(recipe, 0);
  for (const char* usual : {"feed-forward", "heads x", "width / layers", "vocabulary", "dropout"})
    EXPECT_EQ(rule(plan, usual).verdict, RuleVerdict::usual) << usual;
  EXPECT_EQ(rule(plan, "tokens per").verdict, RuleVerdict::unusual);
  recipe.model.ffn_width = 64 * 4096;  // T5-11B's ratio
  recipe.model.layers = 400;
  recipe.model.dropout = 0.1;
  recipe.train.optimizer.weight_decay = 0.0;
  recipe.train.optimizer.learning_rate = 4e-3;
  plan = plan_run(recipe, 0);
  EXPECT_EQ(rule(plan, "feed-forward").verdict, RuleVerdict::against);
  EXPECT_EQ(rule(plan, "width / layers").verdict, RuleVerdict::against);
  for (const char* unusual : {"dropout", "weight decay", "attention logits"}) {
    EXPECT_EQ(rule(plan, unusual).verdict, RuleVerdict::unusual) << unusual;
    EXPECT_FALSE(rule(plan, unusual).advice.empty());
  }
}

TEST(RunPlan, EveryRecipeOfThePapersPlansAtItsStatedSize) {
  const std::map<std::string, std::pair<double, double>> millions{
      // parameters in millions, tokens of the run in billions (3.7, 10.3)
      {"focal-400m", {393, 26.2}},         {"focal-777m", {778, 26.2}},
      {"focal-1.3b", {1345, 26.2}},        {"focal-2.7b", {2702, 26.2}},
      {"focal-6.7b", {6738, 26.2}},        {"focal-9.5b", {9468, 26.2}},
      {"focal-2.7b-large", {2702, 314.6}}, {"focal-2.7b-32k", {2702, 5.0}},
      {"mta-880m", {876.6, 104.9}},        {"mta-880m-4k", {876.6, 10.5}}};
  size_t found = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(FOVEA_SOURCE_DIR "/recipes/papers")) {
    const RunPlan plan = plan_run(load_recipe(entry.path()).recipe, 0);
    const auto known = millions.find(entry.path().stem().string());
    if (known == millions.end()) continue;
    ++found;
    EXPECT_NEAR(static_cast<double>(plan.parameters.total()) / 1e6, known->second.first, 0.6)
        << known->first;
    EXPECT_NEAR(static_cast<double>(plan.tokens) / 1e9, known->second.second, 0.05) << known->first;
  }
  EXPECT_EQ(found, millions.size());
}

TEST(RunPlan, TheLargeFocalModelsHaveTheRatesOfTheTableNotOfTheText) {  // F-8
  const auto rate = [](const char* name) {
    return load_recipe(std::string(FOVEA_SOURCE_DIR "/recipes/papers/") + name)
        .recipe.train.optimizer.learning_rate;
  };
  EXPECT_DOUBLE_EQ(rate("focal-400m.yaml"), 4e-3);
  EXPECT_DOUBLE_EQ(rate("focal-6.7b.yaml"), 4e-4);
  EXPECT_DOUBLE_EQ(rate("focal-9.5b.yaml"), 4e-4);
}

TEST(RunPlan, JsonHoldsEveryPart) {
  const auto json = plan_run(recipe_of(64, 2, 4, 128, 300, true), 0).to_json();
  EXPECT_EQ(json["parameters"]["total"], 300 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 128) + 64);
  EXPECT_EQ(json["rules"].size(), 9u);
  EXPECT_GE(json["decode"].size(), 2u);
  EXPECT_GT(json["memory_bytes"]["total"], json["memory_bytes"]["activations"]);
}

}  // namespace
}  // namespace fovea::run_plan_test
