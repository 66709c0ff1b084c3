// LoRA in the decoder: where adapters sit, the start that changes nothing, gradients, counts,
// refusals (spec 5, 13.13).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/lora.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fovea/nn/transformer.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"
#include "tests/support/tiny_model.h"

namespace fovea::lora_test {
namespace {

using namespace fovea::testing;
using ::testing::ElementsAre;

ModelConfig adapted_config(std::vector<std::string> targets, int64_t rank = 3) {
  ModelConfig config = tiny_config();
  config.lora = {.rank = rank, .targets = std::move(targets)};
  return config.resolved(config.vocab_size);
}

ModelInput tokens(int64_t rows = 2, int64_t length = 12) {
  return {.tokens_bt = at::arange(rows * length).remainder(97).view({rows, length})};
}

// Gives every B values, so that adapters act.
void wake(Transformer& model) {
  const at::NoGradGuard no_grad;
  for (Parameter& p : model.parameters().all()) {
    if (p.name.ends_with(".lora_B.weight"))
      initialise(p.value, {.kind = Init::Kind::normal, .value = 0.2}, 9, p.name);
  }
}

TEST(Lora, StartsExactlyAsItsBase) {
  const Transformer base(tiny_config(), 3);
  const at::Tensor expected = base.logits(base.hidden(tokens()));
  for (const auto& targets :
       {std::vector<std::string>{"q_proj", "v_proj"}, std::vector<std::string>{"all-linear"},
        std::vector<std::string>{"qkv_proj", "layers.1.mlp.up_proj"}}) {
    const Transformer model(adapted_config(targets), 3);
    EXPECT_TRUE(at::equal(model.logits(model.hidden(tokens())), expected)) << targets[0];
  }
}

// The formula by hand: each adapted projection is x W^T + s (x A^T) B^T.
TEST(Lora, AddsScaledBAToTheWeightsItIsOn) {
  for (const bool rslora : {false, true}) {
    ModelConfig config = adapted_config({"all-linear"});
    config.lora.rslora = rslora;
    config.lora.alpha = 5.0;
    config.lora.modules = {{.module = "o_proj", .rank = 2},
                           {.module = "1.mlp.up_proj", .alpha = 7.0}};
    Transformer model(config, 3);
    wake(model);
    model.compute().dtype = at::kDouble;
    Transformer merged(tiny_config(), 3);
    merged.compute().dtype = at::kDouble;
    const at::NoGradGuard no_grad;
    for (const char* module :
         {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
          "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      for (int layer = 0; layer < 2; ++layer) {
        const std::string name = fmt::format("model.layers.{}.{}", layer, module);
        const at::Tensor a = model.parameters().find(name + ".lora_A.weight")->value,
                         b = model.parameters().find(name + ".lora_B.weight")->value;
        const double r = std::string(module).ends_with("o_proj") ? 2 : 3;
        ASSERT_EQ(a.size(0), static_cast<int64_t>(r)) << name;
        const double alpha = layer == 1 && std::string(module) == "mlp.up_proj" ? 7.0 : 5.0;
        const double s = alpha / (rslora ? std::sqrt(r) : r);
        merged.parameters().find(name + ".weight")->value.add_(at::matmul(b, a) * s);
      }
    }
    EXPECT_LT(relative_error(model.logits(model.hidden(tokens())),
                             merged.logits(merged.hidden(tokens()))),
              1e-6);
  }
}

TEST(Lora, JoinedProjectionsShareOneA) {
  const ModelConfig config = adapted_config({"qkv_proj"});
  Transformer joined(config, 3), apart(adapted_config({"q_proj", "k_proj", "v_proj"}), 3);
  wake(joined);
  const at::NoGradGuard no_grad;
  for (int layer = 0; layer < 2; ++layer) {
    const std::string block = fmt::format("model.layers.{}.self_attn.", layer);
    const at::Tensor b = joined.parameters().find(block + "qkv_proj.lora_B.weight")->value;
    ASSERT_EQ(b.size(0), 16 + 2 * 8);
    int64_t row = 0;
    for (const auto& [part, rows] : {std::pair{"q_proj", 16}, {"k_proj", 8}, {"v_proj", 8}}) {
      apart.parameters()
          .find(block + part + ".lora_A.weight")
          ->value.copy_(joined.parameters().find(block + "qkv_proj.lora_A.weight")->value);
      apart.parameters().find(block + part + ".lora_B.weight")->value.copy_(b.narrow(0, row, rows));
      row += rows;
    }
  }
  EXPECT_LT(relative_error(apart.hidden(tokens()), joined.hidden(tokens())), 1e-6);
}

TEST(Lora, GradientsOfAAndBAreThoseOfDifferences) {
  LoraAdapter adapter{.scale = 0.7};
  const auto draw = [](at::IntArrayRef sizes) {
    return at::randn(sizes, at::kDouble).set_requires_grad(true);
  };
  expect_gradients(
      [&](const std::vector<at::Tensor>& x) {
        adapter.a_ri = x[1];
        adapter.b_or = x[2];
        return lora_product(adapter, x[0], 0.0, 0).square().sum();
      },
      {draw({2, 3, 5}), draw({2, 5}), draw({4, 2})});
}

TEST(Lora, OnlyAAndBGetGradientsOverAFrozenBaseAlsoWithRecomputedLayers) {
  std::vector<at::Tensor> seen;
  for (const bool recompute : {false, true}) {
    Transformer model(adapted_config({"all-linear"}), 3);
    wake(model);
    model.parameters().train_only([](const Parameter& p) { return is_lora(p.name); });
    model.compute().checkpoint_layers = recompute;
    const ModelInput input = tokens();
    model.loss(input, input.tokens_bt).loss.backward();
    std::vector<at::Tensor> flat;
    for (const Parameter& p : model.parameters().all()) {
      ASSERT_EQ(p.value.grad().defined(), is_lora(p.name)) << p.name;
      if (p.value.grad().defined()) flat.push_back(p.value.grad().flatten());
    }
    seen.push_back(at::cat(flat));
  }
  EXPECT_GT(seen[0].abs().max().item<double>(), 0.0);
  EXPECT_LT(relative_error(seen[1], seen[0]), 1e-6);
}

TEST(Lora, DropoutActsInTrainingAloneAndFollowsTheSeed) {
  ModelConfig config = adapted_config({"v_proj", "down_proj"});
  config.lora.dropout = 0.5;
  Transformer model(config, 3);
  wake(model);
  ModelInput input = tokens();
  const at::Tensor plain = model.hidden(input);
  EXPECT_TRUE(model.hidden(input).equal(plain));
  input.training = true;
  input.dropout_seed = 1;
  const at::Tensor first = model.hidden(input), again = model.hidden(input);
  input.dropout_seed = 2;
  EXPECT_TRUE(first.equal(again));
  EXPECT_FALSE(first.equal(plain));
  EXPECT_FALSE(first.equal(model.hidden(input)));
}

TEST(Lora, DecodingIsTheFullForwardPass) {
  Transformer model(adapted_config({"all-linear"}), 3);
  wake(model);
  model.compute().dtype = at::kDouble;
  const at::Tensor all = tokens(1).tokens_bt;
  const at::Tensor full = model.logits(model.hidden({.tokens_bt = all}));
  DecodeState state = model.make_decode_state(1, 12);
  for (int64_t t = 0; t < 12; ++t) {
    const at::Tensor one = model.decode(all.narrow(1, t, 1), state);
    EXPECT_LT((one[0] - full[0][t]).abs().max().item<double>(), 1e-10) << t;
  }
}

// 13.13: the counts of the Focus paper's comparison, PEFT's default targets.
TEST(Lora, CountsAreThoseOfTheFocusPaper) {
  const auto count = [](ModelConfig c, const char* target, const char* other, int64_t rank) {
    c.lora = {.rank = rank, .targets = {target, other}};
    c = c.resolved(c.vocab_size);
    int64_t n = 0;
    for (const LoraPlace& p : lora_places(c.lora, c)) n += p.rank * (p.inputs + p.outputs);
    return n;
  };
  const ModelConfig gpt2{.vocab_size = 50257,
                         .layers = 12,
                         .width = 768,
                         .heads = 12,
                         .feed_forward = FeedForward::gelu_tanh,
                         .context = 1024};
  const ModelConfig mistral{.vocab_size = 32000,
                            .layers = 32,
                            .width = 4096,
                            .heads = 32,
                            .kv_heads = 8,
                            .ffn_width = 14336,
                            .context = 1024};
  EXPECT_EQ(count(gpt2, "qkv_proj", "qkv_proj", 4), 147456);
  EXPECT_EQ(count(gpt2, "qkv_proj", "qkv_proj", 16), 589824);
  EXPECT_EQ(count(mistral, "q_proj", "v_proj", 4), 1703936);
}

TEST(Lora, TargetsMeanANameOrTheEndOfIt) {
  const ModelConfig config = tiny_config();
  const auto modules = [&](std::vector<std::string> targets) {
    std::vector<std::string> names;
    for (const LoraPlace& p : lora_places({.rank = 1, .targets = std::move(targets)}, config))
      names.push_back(p.module);
    return names;
  };
  EXPECT_THAT(modules({"o_proj"}),
              ElementsAre("model.layers.0.self_attn.o_proj", "model.layers.1.self_attn.o_proj"));
  EXPECT_THAT(modules({"layers.1.mlp.up_proj"}), ElementsAre("model.layers.1.mlp.up_proj"));
  EXPECT_EQ(modules({"all-linear"}).size(), 14u);
}

TEST(Lora, SettingsWithoutAMeaningAreRefusedByKey) {
  const auto refused = [](LoraSettings lora, const std::vector<std::string>& parts) {
    ModelConfig config = tiny_config();
    config.lora = std::move(lora);
    return throws_naming<ConfigError>([&] { (void)config.resolved(config.vocab_size); }, parts);
  };
  EXPECT_TRUE(refused({.rank = -1}, {"model.lora.rank", "-1"}));
  EXPECT_TRUE(refused({.alpha = 16.0}, {"model.lora.rank"}));
  EXPECT_TRUE(refused({.rank = 4, .alpha = 0.0}, {"model.lora.alpha", "0"}));
  EXPECT_TRUE(refused({.rank = 4, .dropout = 1.0}, {"model.lora.dropout", "1"}));
  EXPECT_TRUE(refused({.rank = 4, .targets = {}}, {"model.lora.targets"}));
  EXPECT_TRUE(refused({.rank = 4, .targets = {"q_prj"}}, {"q_prj", "did you mean", "q_proj"}));
  EXPECT_TRUE(refused({.rank = 4, .targets = {"layers.2.self_attn.q_proj"}}, {"layers.2"}));
  EXPECT_TRUE(refused({.rank = 4, .targets = {"qkv_proj", "v_proj"}}, {"qkv_proj", "layer 0"}));
  EXPECT_TRUE(refused({.rank = 4, .modules = {{.module = "o_proj", .rank = 8}}},
                      {"model.lora.modules", "o_proj"}));
  EXPECT_TRUE(refused({.rank = 4, .modules = {{.module = "q_proj", .rank = -2}}},
                      {"model.lora.modules.0.rank", "-2"}));
}

}  // namespace
}  // namespace fovea::lora_test
