// Sharded layers: ranks that hold a part of each layer take the steps of one that holds all.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/sharded_layers.h"

#include <ATen/ATen.h>

#include "fovea/checkpoint/run_folder.h"
#include "tests/support/expect_error.h"
#include "tests/train/ranks_run.h"

namespace fovea::sharded_layers_test {
namespace {

using namespace fovea::testing;

class ShardedRun : public RanksRun {
 protected:
  Recipe sharded(const std::string& attention, const std::string& run) {
    Recipe r = recipe(attention, run);
    r.model.layers = 3;
    r.train.shard = Shard::all;
    r.train.steps = 24;
    r.train.schedule.kind = ScheduleConfig::Kind::constant;
    return r;
  }
};

TEST_F(ShardedRun, TwoAndThreeRanksTakeTheStepsOfOne) {
  const std::pair<std::string, std::string> models[] = {
      {"standard", "{}"},
      {"learned-temperature", R"({"temperature": {"kind": "learned"}})"},
      {"multi-token",
       R"({"multi_token": {"before": {"queries": 2, "keys": 3}, "after": {"queries": 2, "keys": 4}},
           "head_mix": {"before": "full"}, "head_output": {"norm": "rms", "gate": "scalar"}})"},
      {"focus", R"({"focus": {"gate": "log", "groups": 4, "top_k": 1, "window": 2, "sinks": 1}})"},
  };
  for (const auto& [name, attention] : models) {
    Recipe whole = sharded(attention, name + "-1");
    whole.train.shard = Shard::moments;
    const Run one = train(whole, 1);
    EXPECT_EQ(one.losses.size(), 24u);
    for (const int64_t ranks : {2, 3}) {
      const std::string run = fmt::format("{}-{}", name, ranks);
      expect_same(one, train(sharded(attention, run), ranks), run);
    }
  }
}

TEST_F(ShardedRun, GoesOnWithAnyNumberOfRanksShardedOrNot) {
  const Run never_stopped = train(sharded("{}", "straight"), 1);
  Run run;
  Recipe part = sharded("{}", "part");
  const auto go_on = [&](int64_t steps, int64_t ranks, Shard shard) {
    part.train.steps = steps;
    part.train.shard = shard;
    const Run more = train(part, ranks);
    run.losses.insert(run.losses.end(), more.losses.begin(), more.losses.end());
    run.norms.insert(run.norms.end(), more.norms.begin(), more.norms.end());
    run.result = more.result;
  };
  go_on(6, 2, Shard::all);
  go_on(12, 3, Shard::all);
  go_on(18, 2, Shard::moments);
  go_on(24, 4, Shard::all);
  expect_same(never_stopped, run, "2, 3, 2 and 4 ranks");
  EXPECT_EQ(list_checkpoints(folder_ / "part").back().step, 24);
}

TEST_F(ShardedRun, AStageOfAnotherModelTakesTheParts) {
  const auto staged = [&](const std::string& run) {
    Recipe r = sharded("{}", run);
    r.train.steps = 0;
    r.train.stages.resize(2);
    r.train.stages[0].name = "short";
    r.train.stages[1].name = "long";
    for (StageConfig& stage : r.train.stages) stage.steps = 8;
    r.train.stages[1].rope_theta = 50'000.0;
    r.train.stages[1].carry_optimizer = true;
    return r;
  };
  expect_same(train(staged("one"), 1), train(staged("two"), 2), "stages");
}

TEST_F(ShardedRun, OverAFrozenBaseOnlyWhatIsAddedLearns) {
  const auto adapted = [&](const std::string& run) {
    Recipe r = sharded(R"({"temperature": {"kind": "learned"}})", run);
    r.train.trainable = "added";
    return r;
  };
  expect_same(train(adapted("one"), 1), train(adapted("two"), 2), "frozen base");
}

TEST_F(ShardedRun, InBfloat16TheLossesAreNear) {
  const auto half = [&](const std::string& run) {
    Recipe r = sharded("{}", run);
    r.train.dtype = DtypeChoice::bfloat16;
    return r;
  };
  const Run one = train(half("one"), 1), two = train(half("two"), 2);
  ASSERT_EQ(one.losses.size(), two.losses.size());
  for (size_t i = 0; i < one.losses.size(); ++i)
    EXPECT_NEAR(one.losses[i], two.losses[i], 2e-3 * one.losses[i]) << i;
}

TEST_F(ShardedRun, ModelsAndObjectivesThatCannotBeCutAreRefusedByName) {
  Recipe rows = sharded(R"({"longformer": {"window": 4, "globals": 1, "projections": true}})", "a");
  EXPECT_ERROR(UnsupportedError, train(rows, 2), "Longformer's projections",
               "train.shard: moments");
  Recipe kept = sharded(R"({"focus": {"gate": "log", "groups": 4, "window": 2}})", "b");
  kept.train.trainable = "focus";
  kept.train.objective = "distillation";
  EXPECT_ERROR(UnsupportedError, train(kept, 2), "got 'distillation'", "train.shard: moments");
}

// Between two passes a rank has its part alone; in a pass, the layer that is read and the next one.
TEST(ShardedLayers, AreWholeOnlyWhereTheyAreRead) {
  const ModelConfig config =
      ModelConfig{.layers = 4, .width = 8, .heads = 2, .ffn_width = 16, .context = 8}.resolved(11);
  const Transformer whole(config, 3);
  run_ranks(2, [&](Communicator& ranks) {
    Transformer model(config, 3, at::kCPU, FirstNumbers::awaited);
    ShardedLayers layers(model, ranks);
    layers.draw();
    const auto here = [&](int64_t layer) {
      const std::string name = fmt::format("model.layers.{}.mlp.up_proj.weight", layer);
      const at::Tensor& value = model.parameters().find(name)->value;
      const bool is_whole = value.equal(whole.parameters().find(name)->value);
      EXPECT_TRUE(is_whole || value.isnan().all().item<bool>());
      EXPECT_EQ(value.sizes(), (at::IntArrayRef{16, 8}));
      return is_whole;
    };
    EXPECT_FALSE(here(0) || here(1) || here(2) || here(3));
    layers.gather(1, 2);
    EXPECT_TRUE(here(1) && !here(0) && !here(3));
    layers.gather(2, 3);
    EXPECT_TRUE(here(2) && !here(1));
    layers.finish();
    EXPECT_FALSE(here(0) || here(1) || here(2) || here(3));
    const Parameter& up = *model.parameters().find("model.layers.0.mlp.up_proj.weight");
    const Parameter& embedding = *model.parameters().find("model.embed_tokens.weight");
    EXPECT_LE(layers.own_value(up).numel(), up.value.numel());
    EXPECT_FALSE(layers.has(embedding));
    EXPECT_TRUE(embedding.value.equal(whole.parameters().find(embedding.name)->value));
  });
}

TEST(SavedParts, ComeWholeToTheFirstRankInAnyOrder) {
  const at::Tensor numbers = at::arange(30, at::kFloat);
  const FlatParts cut{.numbers = 30, .ranks = 4};
  run_ranks(4, [&](Communicator& ranks) {
    SavedParts parts(ranks);
    const auto add = [&](const char* name, int64_t begin, int64_t length) {
      const at::Tensor all = numbers.narrow(0, begin, length);
      const at::Tensor shape =
          parts.add(name, cut.part(all, begin, ranks.rank()), {length}, begin, cut);
      EXPECT_TRUE(shape.isnan().all().item<bool>());
    };
    add("a", 0, 7);
    add("b", 7, 20);
    add("c", 27, 3);
    if (!ranks.is_first()) return parts.serve();
    EXPECT_TRUE(parts.fetch("c", {}).equal(numbers.narrow(0, 27, 3)));
    EXPECT_TRUE(parts.fetch("b", {}).equal(numbers.narrow(0, 7, 20)));
    EXPECT_TRUE(parts.fetch("a", {}).equal(numbers.narrow(0, 0, 7)));
    EXPECT_TRUE(parts.fetch("other", numbers).equal(numbers));
    parts.end();
  });
}

}  // namespace
}  // namespace fovea::sharded_layers_test
