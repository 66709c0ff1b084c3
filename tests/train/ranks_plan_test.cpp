// The plan of several ranks: what they share, what they exchange, and how many fit.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/ranks_plan.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fovea::ranks_plan_test {
namespace {

constexpr int64_t kVocabulary = 8192;
constexpr double kSpeed = 1e12;

/// A model of 3.8 million parameters, with 16 rows a micro-batch.
Recipe recipe_of(int64_t rows = 16) {
  Recipe recipe;
  recipe.name = "planned";
  recipe.data.sources.push_back({.path = "text.txt"});
  recipe.model.layers = 4;
  recipe.model.width = 256;
  recipe.model.heads = 4;
  recipe.model.context = 128;
  recipe.train.steps = 10;
  recipe.train.batch_rows = rows;
  recipe.train.device = DeviceChoice::cpu;
  recipe.train.dtype = DtypeChoice::float32;
  return recipe;
}

RanksPlan planned(int64_t ranks, const char* link = "loopback", int64_t rows = 16) {
  return plan_on_ranks(recipe_of(rows), kVocabulary, ranks, kSpeed, find_link(link));
}

TEST(RanksPlan, OneRankIsTheRunWithoutExchange) {
  const RunPlan run = plan_run(recipe_of(), kVocabulary);
  const RanksPlan one = planned(1);
  EXPECT_EQ(one.rows, 16);
  EXPECT_EQ(one.memory.gradients, run.memory.gradients);
  EXPECT_EQ(one.memory.activations, run.memory.activations);
  EXPECT_EQ(one.memory.optimizer, run.memory.optimizer);
  EXPECT_DOUBLE_EQ(one.step_seconds(),
                   run.training_per_token * static_cast<double>(run.step_tokens) / kSpeed);
}

TEST(RanksPlan, RowsActivationsAndMomentsAreSharedWeightsAndGradientsAreNot) {
  const RanksPlan one = planned(1), three = planned(3);
  EXPECT_EQ(three.rows, 6);  // of 16: one rank has five
  EXPECT_EQ(three.memory.weights, one.memory.weights);
  EXPECT_EQ(three.memory.gradients, one.memory.gradients);
  EXPECT_EQ(three.memory.optimizer, (one.memory.optimizer + 2) / 3);
  EXPECT_NEAR(static_cast<double>(three.memory.activations),
              static_cast<double>(one.memory.activations) * 6 / 16, 16);
  EXPECT_EQ(three.step_tokens, one.step_tokens);
  EXPECT_NEAR(three.compute_seconds, one.compute_seconds * 6 / 16, 1e-9);
}

TEST(RanksPlan, ShardedLayersTakeTheirShareOfAllMemoryAndAreExchanged) {
  Recipe recipe = recipe_of();
  recipe.train.gradient_checkpointing = true;
  recipe.model.layers = 16;
  const auto on = [&](int64_t ranks, Shard shard, const char* link = "ethernet-100g") {
    recipe.train.shard = shard;
    return plan_on_ranks(recipe, kVocabulary, ranks, kSpeed, find_link(link));
  };
  const RanksPlan moments = on(8, Shard::moments), all = on(8, Shard::all);
  const auto parts = plan_run(recipe, kVocabulary).parameters;
  const double cut = 4.0 * static_cast<double>(parts.attention + parts.feed_forward + parts.norms);
  const double whole = 1.0 / 8.0 + 2.0 / 16.0;  // a part, and two of 16 layers
  const auto saved = [&](int64_t MemoryPlan::*kind) {
    return static_cast<double>(moments.memory.*kind - all.memory.*kind);
  };
  EXPECT_NEAR(saved(&MemoryPlan::gradients), (1.0 - whole) * cut, 4.0);
  EXPECT_GE(saved(&MemoryPlan::weights), (1.0 - whole) * cut - 4.0);
  EXPECT_EQ(moments.memory.optimizer, all.memory.optimizer);
  EXPECT_EQ(on(1, Shard::all).memory.weights, on(1, Shard::moments).memory.weights);
  const RanksPlan slow = on(8, Shard::all, "0.001");
  const auto exchanged = [](const RanksPlan& p) { return p.weight_seconds + p.exposed_seconds; };
  EXPECT_GT(exchanged(slow), 1.2 * exchanged(on(8, Shard::moments, "0.001")));
  EXPECT_GT(all.efficiency(), slow.efficiency());
  constexpr double kGrowth = 2e7;  // of this process, which the plan counts
  EXPECT_LT(fewest_ranks(recipe, kVocabulary, static_cast<double>(all.memory.total()) + kGrowth),
            9);
}

TEST(RanksPlan, SlowLinksCostWhatComputationDoesNotHide) {
  const RanksPlan slow = planned(2, "0.001"), fast = planned(2, "nvlink");
  EXPECT_GT(slow.exposed_seconds, 0.9 * slow.gradient_seconds);
  EXPECT_LT(fast.exposed_seconds, 0.5 * fast.gradient_seconds);
  EXPECT_GT(fast.efficiency(), 0.95);
  EXPECT_LT(slow.efficiency(), fast.efficiency());
  EXPECT_GT(planned(16).gradient_seconds, planned(2).gradient_seconds);
}

TEST(RanksPlan, TheFewestRanksAreTheFirstThatFit) {
  const Recipe recipe = recipe_of(64);
  const auto bytes = [&](int64_t ranks) {
    return static_cast<double>(planned(ranks, "loopback", 64).memory.total());
  };
  const double memory = 0.5 * (bytes(5) + bytes(6));
  ASSERT_LT(bytes(6), memory);
  EXPECT_EQ(fewest_ranks(recipe, kVocabulary, memory), 6);
  EXPECT_EQ(fewest_ranks(recipe, kVocabulary, 2 * bytes(1)), 1);
  EXPECT_EQ(fewest_ranks(recipe, kVocabulary, 1e6), std::nullopt);
}

TEST(RanksPlan, RefusesFewerRowsThanRanksAndUnknownLinks) {
  EXPECT_ERROR(ConfigError, planned(17), "got 16 rows and 17 ranks");
  EXPECT_ERROR(UsageError, find_link("infiband-400g"), "did you mean 'infiniband-400g'");
  EXPECT_ERROR(UsageError, find_link("-1"), "expected gigabytes a second");
  EXPECT_DOUBLE_EQ(find_link("2.5").bytes_per_second, 2.5e9);
}

}  // namespace
}  // namespace fovea::ranks_plan_test
