// A retrofit starts at its base, leaves the base alone, resumes with the same numbers, and its
// adapter gives the same model again (spec 11.7).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/retrofit/retrofit.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "fovea/base/files.h"
#include "fovea/checkpoint/adapter.h"
#include "fovea/checkpoint/model_folder.h"
#include "fovea/checkpoint/run_folder.h"
#include "fovea/eval/side_by_side.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/tiny_run.h"

namespace fovea::retrofit_test {
namespace {

using namespace fovea::testing;

at::Tensor outputs(const Transformer& model) {
  const at::NoGradGuard no_grad;
  return model.logits(model.hidden({.tokens_bt = at::arange(24).remainder(97).view({2, 12})}));
}

class Retrofit : public ::testing::Test {
 protected:
  void SetUp() override {
    Recipe recipe = tiny_recipe(folder_.path());
    recipe.model.heads = recipe.model.kv_heads = 2;
    recipe.run_folder = (folder_ / "base").string();
    recipe.train.steps = 4;
    Trainer(recipe).run();
  }

  RetrofitOptions options(std::vector<std::string> with, const std::string& out = "out") const {
    return {.model = (folder_ / "base").string(),
            .with = std::move(with),
            .texts = {(folder_ / "text").string()},
            .held_out = {},
            .out = folder_ / out,
            .steps = 6,
            .length = 16,
            .evaluation_tokens = 128,
            .copy = 8,
            .overrides = {"model.attention.focus.window=2", "model.attention.focus.groups=4",
                          "model.attention.focus.top_k=1", "model.attention.focus.sinks=1",
                          "train.dtype=float32", "train.device=cpu", "train.threads=1",
                          "data.cache=" + (folder_ / "cache").string()}};
  }
  LoadedModel base() const { return load_model(resolve_model_folder(folder_ / "base")); }

  TemporaryFolder folder_;
};

TEST_F(Retrofit, EveryMechanismStartsAtItsBase) {
  const LoadedModel loaded = base();
  const at::Tensor before = outputs(loaded.model);
  for (const RetrofitKind& kind : retrofit_kinds()) {
    if (kind.own_start) continue;  // Differential: differential_start_test.cpp
    ModelConfig config = loaded.config;
    EXPECT_FALSE(kind.has(config)) << kind.name;
    kind.apply(config);
    EXPECT_TRUE(kind.has(config)) << kind.name;
    Transformer model(config.resolved(config.vocab_size), 1);
    const at::NoGradGuard no_grad;
    for (Parameter& p : model.parameters().all())
      if (const Parameter* same = loaded.model.parameters().find(p.name))
        p.value.copy_(same->value);
    EXPECT_GT(model.parameters().count(), loaded.model.parameters().count()) << kind.name;
    if (kind.name == "focus") model.compute().focus = FocusMode::off;
    EXPECT_LT(relative_error(outputs(model), before), 1e-6) << kind.name;
  }
}

TEST_F(Retrofit, PhasesTrainWhatWasAddedAndLeaveTheBaseAlone) {
  const RetrofitResult result = run_retrofit(
      options({"lora", "focus", "multi_token", "talking_heads", "focal"}), RetrofitCallbacks{});
  EXPECT_THAT(result.kinds,
              ::testing::ElementsAre("focus", "focal", "multi_token", "talking_heads", "lora"));
  ASSERT_EQ(result.phases.size(), 2u);
  const LoadedModel before = base(), after = load_model(result.phases[1].checkpoint);
  int64_t added = 0;
  for (const Parameter& p : after.model.parameters().all()) {
    const Parameter* same = before.model.parameters().find(p.name);
    if (same != nullptr) {
      EXPECT_TRUE(p.value.equal(same->value)) << p.name;
    } else if (!p.state) {
      added += p.value.numel();
    }
  }
  EXPECT_EQ(added, result.added_parameters);
  EXPECT_GT(added, 0);
  // The second phase reads what the first one learned.
  const LoadedModel groups = load_model(result.phases[0].checkpoint);
  const std::string centroids = "model.layers.0.self_attn.focus.centroids";
  EXPECT_TRUE(after.model.parameters().find(centroids)->value.equal(
      groups.model.parameters().find(centroids)->value));
}

TEST_F(Retrofit, TheAdapterGivesTheTrainedModelOnItsBase) {
  for (const std::vector<std::string>& with :
       {std::vector<std::string>{"focus"}, {"focal"}, {"multi_token", "talking_heads", "lora"}}) {
    const RetrofitResult result =
        run_retrofit(options(with, "out-" + with.front()), RetrofitCallbacks{});
    const LoadedModel loaded = base();
    const Transformer again =
        with_adapter(loaded.model, read_adapter(result.adapter, loaded.config));
    const LoadedModel trained = load_model(result.phases.back().checkpoint);
    EXPECT_TRUE(outputs(again).equal(outputs(trained.model))) << with.front();
    EXPECT_TRUE(outputs(without_adapter(again, &loaded.config)).equal(outputs(loaded.model)))
        << with.front();
    EXPECT_EQ(result.retention.has_value(), with.front() == "focus");
    EXPECT_GT(result.before.perplexity, 1.0);
    EXPECT_GT(result.after.copy, 1.0);
    const auto json =
        nlohmann::json::parse(read_file(folder_ / ("out-" + with.front()) / "retrofit.json"));
    EXPECT_EQ(json.at("added_parameters"), result.added_parameters);
    EXPECT_EQ(json.contains("retention"), with.front() == "focus");
  }
}

TEST_F(Retrofit, WritesTheSystemsThatItIsComparedWith) {
  const RetrofitResult result = run_retrofit(options({"focus"}), {});
  const AttentionSystems systems = read_attention_systems(folder_ / "out/systems.yaml");
  std::vector<std::string> names;
  for (const AttentionSystem& system : systems.systems) names.push_back(system.name);
  EXPECT_THAT(names, ::testing::ElementsAre("full attention", "soft groups", "top-1",
                                            "window and sinks as top-1", "strided as top-1",
                                            "random groups, top-1", "hash groups, top-1", "top-2",
                                            "window and sinks as top-2", "strided as top-2",
                                            "random groups, top-2", "hash groups, top-2"));
  std::string text;
  for (int i = 0; i < 64; ++i) text += static_cast<char>('a' + i * i % 23);
  const SideBySideResult table =
      compare_attentions(systems, std::vector<ScoreDocument>{{"s", text}},
                         {.model = resolve_model_folder(folder_ / "base"), .lengths = {16}});
  ASSERT_EQ(table.rows.size(), 12U);
  EXPECT_DOUBLE_EQ(table.rows[0].scores[0].pairs.value(), 1.0);
  EXPECT_LT(table.rows[2].scores[0].pairs.value(), 1.0);
  EXPECT_NEAR(table.rows[3].scores[0].pairs.value(), table.rows[2].scores[0].pairs.value(), 0.08);
  run_retrofit(options({"focal"}, "focal"), {});
  EXPECT_EQ(read_attention_systems(folder_ / "focal/systems.yaml").systems.size(), 2U);
}

TEST_F(Retrofit, TheGroupsLearnByTheObjectiveThatWasAskedFor) {
  EXPECT_EQ(RetrofitOptions{}.objective, "lm");
  std::vector<at::Tensor> learned;
  for (const char* const objective : {"lm", "kept_mass", "distillation"}) {
    RetrofitOptions asked = options({"focus", "lora"}, std::string("out-") + objective);
    asked.objective = objective;
    const std::vector<RetrofitPhase> plan = plan_retrofit(asked, base().config);
    ASSERT_EQ(plan.size(), 2U);
    EXPECT_EQ(plan[0].recipe.train.objective, objective);
    EXPECT_EQ(plan[0].recipe.train.trainable, "focus");
    EXPECT_EQ(plan[1].recipe.train.objective, "lm");
    asked.with = {"focus"};
    const RetrofitResult result = run_retrofit(asked, {});
    learned.push_back(load_model(result.phases[0].checkpoint)
                          .model.parameters()
                          .find("model.layers.0.self_attn.focus.centroids")
                          ->value);
    for (size_t i = 0; i + 1 < learned.size(); ++i)
      EXPECT_FALSE(learned[i].equal(learned.back())) << objective;
  }
}

// The groups of the second half are hard: the result differs from that of soft groups alone.
TEST_F(Retrofit, TheLanguageModelLossTeachesHardGroupsInItsSecondHalf) {
  RetrofitOptions soft = options({"focus"}, "soft");
  soft.overrides.emplace_back("train.straight_through_from=1");
  EXPECT_EQ(plan_retrofit(options({"focus"}), base().config)[0].recipe.train.straight_through_from,
            0.5);
  const auto centroids = [](const RetrofitResult& result) {
    return load_model(result.phases[0].checkpoint)
        .model.parameters()
        .find("model.layers.0.self_attn.focus.centroids")
        ->value;
  };
  EXPECT_FALSE(
      centroids(run_retrofit(options({"focus"}), {})).equal(centroids(run_retrofit(soft, {}))));
}

TEST_F(Retrofit, DistillationGoesOnFromTheGroupsByKeptMass) {
  RetrofitOptions asked = options({"focus"});
  asked.objective = "kept_mass";
  asked.distill = true;
  const RetrofitResult result = run_retrofit(asked, {});
  ASSERT_EQ(result.phases.size(), 2u);
  const LoadedModel before = load_model(result.phases[0].checkpoint),
                    after = load_model(result.phases[1].checkpoint);
  const std::string centroids = "model.layers.1.self_attn.focus.centroids",
                    query = "model.layers.1.self_attn.q_proj.weight";
  const auto moved = [&](const std::string& name) {
    const at::Tensor x = before.model.parameters().find(name)->value;
    return (after.model.parameters().find(name)->value - x).abs().max().item<double>();
  };
  EXPECT_GT(moved(centroids), 1e-5);
  EXPECT_LT(moved(centroids), 0.5);  // it went on; it did not start again
  EXPECT_EQ(moved(query), 0.0);
  EXPECT_EQ(result.phases[1].attention_path, "fused");
}

TEST_F(Retrofit, DifferentialBeginsFromAStartOfItsOwnAndEndsAsAModel) {
  const RetrofitResult result = run_retrofit(options({"differential", "lora"}), {});
  EXPECT_TRUE(result.adapter.empty());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/adapter"));
  ASSERT_TRUE(result.start.has_value());
  EXPECT_EQ(result.start->lambda.size(), 2U);
  EXPECT_GT(result.start->score.perplexity, 1.0);
  EXPECT_NE(result.start->score.perplexity, result.before.perplexity);
  const LoadedModel start = load_model(result.start->model),
                    trained = load_model(result.phases.back().checkpoint),
                    model = load_model(result.model);
  for (const Parameter& p : trained.model.parameters().all()) {
    const Parameter* const same = start.model.parameters().find(p.name);
    if (same == nullptr) continue;
    const bool learns =
        p.name.find("lambda") != std::string::npos || p.name.find("head_norm") != std::string::npos;
    EXPECT_EQ(!p.value.equal(same->value), learns) << p.name;
  }
  EXPECT_FALSE(model.config.lora.active());
  EXPECT_LT(relative_error(outputs(model.model), outputs(trained.model)), 1e-5);
  // The same call again finds the start and the run.
  const RetrofitResult again = run_retrofit(options({"differential", "lora"}), {});
  EXPECT_EQ(again.start->lambda, result.start->lambda);
  EXPECT_EQ(again.after.perplexity, result.after.perplexity);
  write_file(folder_ / "out/start.json", R"({"base": "another"})");
  EXPECT_ERROR(InputError, run_retrofit(options({"differential", "lora"}), {}), "another model");
}

TEST_F(Retrofit, FinetuningMovesAllWeightsAndEndsAsAModel) {
  RetrofitOptions asked = options({"focus", "focal"});
  asked.finetune = true;
  const std::vector<RetrofitPhase> plan = plan_retrofit(asked, base().config);
  ASSERT_EQ(plan.size(), 3U);
  EXPECT_EQ(plan[2].recipe.train.trainable, "all");
  EXPECT_EQ(plan[2].recipe.train.optimizer.learning_rate, 5e-5);
  EXPECT_EQ(plan[2].recipe.train.straight_through_from, 0.0);
  EXPECT_EQ(plan[2].recipe.model.attention.spec.focus.gate, FocusSpec::Gate::log);
  std::atomic<bool> stop = false;
  RetrofitCallbacks callbacks;
  callbacks.train.stop = &stop;
  bool last = false;
  callbacks.phase = [&](const RetrofitPhase& phase) { last = phase.name == "finetune"; };
  callbacks.train.step = [&](const TrainProgress& p) { stop = stop || (last && p.step == 3); };
  EXPECT_THROW(run_retrofit(asked, callbacks), Interrupted);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/model"));
  const RetrofitResult result = run_retrofit(asked, {});
  RetrofitOptions whole = asked;
  whole.out = folder_ / "whole";
  EXPECT_EQ(run_retrofit(whole, {}).after.perplexity, result.after.perplexity);
  const LoadedModel before = load_model(result.phases[1].checkpoint),
                    model = load_model(result.model);
  EXPECT_EQ(model.config.attention.spec.focus.gate, FocusSpec::Gate::log);
  for (const char* const part : {"q_proj.weight", "o_proj.weight", "focus.centroids"}) {
    const std::string name = std::string("model.layers.1.self_attn.") + part;
    const Parameter* const p = model.model.parameters().find(name);
    ASSERT_NE(p, nullptr) << name;
    EXPECT_FALSE(p->value.equal(before.model.parameters().find(name)->value)) << name;
  }
  EXPECT_TRUE(result.retention.has_value());
  EXPECT_NE(result.before.perplexity, result.retention->full.perplexity);
}

// Sources share the rows that end a phase: many texts take no longer to score than one.
TEST_F(Retrofit, TheEvaluationOfAPhaseIsBounded) {
  const auto tokens = [&](size_t sources) {
    RetrofitOptions asked = options({"focal"});
    asked.texts.clear();
    for (size_t i = 0; i < sources; ++i)
      asked.texts.push_back((folder_ / "text" / (std::to_string(i) + ".txt")).string());
    const TrainConfig train = plan_retrofit(asked, base().config)[0].recipe.train;
    return train.evaluation_tokens * static_cast<int64_t>(sources);
  };
  EXPECT_EQ(tokens(1), 8 * 16);
  EXPECT_EQ(tokens(8), 8 * 16);
  EXPECT_EQ(tokens(3), 6 * 16);
  int64_t last = 0, total = 0;
  RetrofitCallbacks callbacks;
  callbacks.train.evaluating = [&](int64_t done, int64_t all) {
    EXPECT_EQ(done, last + 1);
    last = done, total = all;
  };
  run_retrofit(options({"focus"}), callbacks);
  EXPECT_GT(total, 0);
  EXPECT_EQ(last, total);
}

TEST_F(Retrofit, AnInterruptedRunGoesOnAndEndsWithTheSameAdapter) {
  const RetrofitResult whole = run_retrofit(options({"focus", "lora"}, "whole"), {});
  std::atomic<bool> stop = false;
  RetrofitCallbacks callbacks;
  callbacks.train.stop = &stop;
  callbacks.train.step = [&](const TrainProgress& p) { stop = stop || p.step == 3; };
  EXPECT_THROW(run_retrofit(options({"focus", "lora"}), callbacks), Interrupted);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out" / "adapter"));
  const RetrofitResult again = run_retrofit(options({"focus", "lora"}), {});
  const LoadedModel loaded = base();
  const Adapter a = read_adapter(whole.adapter, loaded.config),
                b = read_adapter(again.adapter, loaded.config);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors)
    EXPECT_TRUE(tensor.equal(b.tensors.at(name))) << name;
  EXPECT_EQ(whole.after.perplexity, again.after.perplexity);
}

TEST_F(Retrofit, AdaptersOfAnotherBaseAreRefused) {
  const RetrofitResult result = run_retrofit(options({"focal"}), {});
  const ModelConfig config = base().config;
  Transformer other(config, 77);
  EXPECT_ERROR(CheckpointError, with_adapter(other, read_adapter(result.adapter, config)),
               "another base", "similarity");
  Transformer adapted = with_adapter(base().model, read_adapter(result.adapter, config));
  EXPECT_ERROR(UnsupportedError, with_adapter(adapted, read_adapter(result.adapter, config)),
               "already");
}

TEST_F(Retrofit, AFolderThatNoRetrofitWroteIsLeftAlone) {
  make_folders(folder_ / "out" / "adapter");
  write_file(folder_ / "out" / "adapter" / "mine.txt", "mine");
  EXPECT_ERROR(InputError, run_retrofit(options({"focal"}), {}), "no retrofit wrote", "--out");
  EXPECT_EQ(read_file(folder_ / "out" / "adapter" / "mine.txt"), "mine");
}

// The base keeps its own mechanism, and the adapter holds the new one alone.
TEST_F(Retrofit, ABaseWithAMechanismOfItsOwnGetsAnother) {
  Recipe recipe = tiny_recipe(folder_.path());
  recipe.model.heads = recipe.model.kv_heads = 2;
  recipe.model.attention.spec.head_mix = {HeadMixSpec::Kind::full, HeadMixSpec::Kind::none};
  recipe.run_folder = (folder_ / "mixed").string();
  recipe.train.steps = 4;
  Trainer(recipe).run();
  for (const char* kind : {"lora", "focal"}) {
    RetrofitOptions asked = options({kind}, std::string("out-") + kind);
    asked.model = (folder_ / "mixed").string();
    std::erase_if(asked.overrides,
                  [](const std::string& key) { return key.starts_with("model.attention.focus"); });
    const RetrofitResult result = run_retrofit(asked, {});
    const LoadedModel loaded = load_model(resolve_model_folder(folder_ / "mixed"));
    const Adapter adapter = read_adapter(result.adapter, loaded.config);
    for (const auto& [name, tensor] : adapter.tensors)
      EXPECT_EQ(name.find("head_mix"), std::string::npos) << name;
    EXPECT_EQ(adapter.attention.has_value(), std::string(kind) == "focal");
    const LoadedModel trained = load_model(result.phases.back().checkpoint);
    EXPECT_TRUE(outputs(with_adapter(loaded.model, adapter)).equal(outputs(trained.model))) << kind;
    // The plain base has no head mixing for it to stand beside; LoRA fits its shapes all the same.
    if (adapter.attention) {
      EXPECT_ERROR(CheckpointError, with_adapter(base().model, adapter), "head_mix");
    }
  }
}

TEST_F(Retrofit, ImpossibleOnesAreRefusedByName) {
  const ModelConfig config = base().config;
  const auto refused = [&](RetrofitOptions o) { plan_retrofit(o, config); };
  EXPECT_ERROR(ConfigError, refused(options({"focsu"})), "focsu", "focus");
  ModelConfig odd = config;
  odd.heads = 3, odd.kv_heads = 1;
  EXPECT_ERROR(ConfigError, plan_retrofit(options({"differential"}), odd), "differential",
               "3 heads and 1 key heads");
  RetrofitOptions both = options({"lora"});
  both.finetune = true;
  EXPECT_ERROR(ConfigError, refused(both), "--finetune", "lora");
  EXPECT_ERROR(ConfigError, refused(options({})), "at least one of");
  RetrofitOptions short_one = options({"focus", "lora"});
  short_one.steps = 0, short_one.minutes = 1.5;
  EXPECT_ERROR(ConfigError, refused(short_one), "at least 2 minutes", "1.5");
  RetrofitOptions no_groups = options({"lora"});
  no_groups.distill = true;
  EXPECT_ERROR(ConfigError, refused(no_groups), "distillation", "focus");
  no_groups.distill = false;
  no_groups.objective = "kept_mass";
  EXPECT_ERROR(ConfigError, refused(no_groups), "--objective kept_mass", "focus");
  RetrofitOptions twice = options({"focus"});
  twice.distill = true;
  twice.objective = "distillation";
  EXPECT_ERROR(ConfigError, refused(twice), "by distillation already");
  twice.distill = false;
  twice.objective = "kept_mas";
  EXPECT_ERROR(ConfigError, refused(twice), "lm, kept_mass, distillation", "kept_mass");
  RetrofitOptions no_text = options({"focus"});
  no_text.texts.clear();
  EXPECT_ERROR(ConfigError, refused(no_text), "--text");
  RetrofitOptions wrong = options({"focus"});
  wrong.overrides.emplace_back("model.attention.focus.top_k=9");
  EXPECT_ERROR(ConfigError, refused(wrong), "top_k");
  ModelConfig focal = config;
  focal.attention.spec.temperature.value = 0.5;
  EXPECT_ERROR(ConfigError, plan_retrofit(options({"focal"}), focal), "already");
}

}  // namespace
}  // namespace fovea::retrofit_test
