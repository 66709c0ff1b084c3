// Every option of the architecture against an independent decoder, decoding against the whole pass,
// and what the options refuse (spec 6, 7).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "fovea/base/error.h"
#include "fovea/nn/layers.h"
#include "fovea/nn/ops.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/count_formula.h"
#include "tests/support/expect_error.h"
#include "tests/support/plain_decoder.h"
#include "tests/support/tiny_model.h"

namespace fovea::options_test {
namespace {

using testing::PlainDecoder;

constexpr int64_t kVocab = 50;

ModelConfig small() {
  ModelConfig c;
  c.layers = 3;
  c.width = 24;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 6;
  c.ffn_width = 40;
  c.context = 32;
  return c;
}

using Named = std::pair<std::string, ModelConfig>;

template <class E, class Set>
void add_all(std::vector<Named>& all, const char* key, Set set) {
  const auto names = enum_names(E{});
  for (size_t i = 0; i < names.size(); ++i) {
    ModelConfig c = small();
    set(c, static_cast<E>(i));
    all.emplace_back(fmt::format("{} {}", key, names[i]), c);
  }
}

std::vector<Named> options() {
  std::vector<Named> all;
  add_all<BlockLayout>(all, "block", [](ModelConfig& c, BlockLayout x) { c.block = x; });
  add_all<BlockLayout>(all, "block with LayerNorm", [](ModelConfig& c, BlockLayout x) {
    c.block = x;
    c.norm = NormKind::layer;
  });
  add_all<NormKind>(all, "norm", [](ModelConfig& c, NormKind x) { c.norm = x; });
  add_all<FeedForward>(all, "feed-forward", [](ModelConfig& c, FeedForward x) {
    c.feed_forward = x;
    c.biases.feed_forward = true;
  });
  add_all<QkNorm>(all, "qk norm", [](ModelConfig& c, QkNorm x) { c.qk_norm = x; });
  add_all<QkNorm>(all, "qk norm, interleaved", [](ModelConfig& c, QkNorm x) {
    c.qk_norm = x;
    c.rope.layout = RopeLayout::interleaved;
    c.rope.rotary_dim = 4;
  });
  add_all<Positions>(all, "positions", [](ModelConfig& c, Positions x) { c.positions = x; });
  using DepthScale = HeadOutputSpec::DepthScale;
  add_all<NormKind>(all, "1 - lambda_init(l) on norms", [](ModelConfig& c, NormKind x) {
    c.norm = x;
    c.norm_depth_scale = DepthScale::lambda;
  });
  for (const BlockLayout block : {BlockLayout::pre, BlockLayout::sandwich, BlockLayout::parallel,
                                  BlockLayout::parallel_two}) {
    ModelConfig scaled = small();
    scaled.block = block;
    scaled.norm_depth_scale = DepthScale::inverse_sqrt;
    all.emplace_back(fmt::format("1/sqrt(l+1) on norms, block {}", enum_name(block)), scaled);
  }
  ModelConfig c = small();
  c.biases = {true, true, true};
  all.emplace_back("biases", c);
  c = small();
  c.embedding_scale = 0.0, c.logit_scale = 0.3, c.logit_cap = 2.0, c.tied = false;
  all.emplace_back("scales and cap", c);
  c = small();
  c.attention.spec.mask.window = 4;
  c.attention.full = {.every = 3, .layers = {}, .positions = false};
  all.emplace_back("window, every third layer full without positions", c);
  c.qk_norm = QkNorm::weightless;
  c.attention.spec.mask = {.sparsity = MaskRule::Sparsity::fixed, .block = 5};
  c.attention.full = {.every = 0, .layers = {0}, .positions = true};
  all.emplace_back("chunks, first layer full", c);
  return all;
}

/// Parameters away from their starts, so that gains and biases matter.
Transformer make(const ModelConfig& c, at::ScalarType dtype) {
  Transformer model(c.resolved(kVocab), 3);
  model.compute().dtype = dtype;
  const at::NoGradGuard no_grad;
  int64_t salt = 1;
  for (Parameter& p : model.parameters().all()) {
    const int64_t n = p.value.numel();
    p.value.add_(at::sin(at::arange(n) + ++salt).view(p.value.sizes()), p.decay ? 0.02 : 0.2);
  }
  return model;
}

at::Tensor tokens(int64_t t) {
  return at::randint(0, kVocab, {1, t}, at::detail::createCPUGenerator(5),
                     at::TensorOptions(at::kLong));
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

at::Tensor logits_of(const Transformer& model, const at::Tensor& ids) {
  ModelInput input;
  input.tokens_bt = ids;
  const at::NoGradGuard no_grad;
  return model.logits(model.hidden(input))[0];
}

TEST(Options, GiveTheLogitsOfAnIndependentDecoder) {
  const at::Tensor ids = tokens(13);
  for (const auto& [name, config] : options()) {
    const Transformer wide = make(config, at::kDouble), narrow = make(config, at::kFloat);
    const at::Tensor expected = PlainDecoder(wide.config(), wide.parameters()).logits(ids[0]);
    const double largest = expected.abs().max().item<double>();
    EXPECT_GT(expected.std().item<double>(), 0.01) << name;
    // RoPE tables and float32 parameters of a float64 model are exact; eps aside nothing rounds.
    EXPECT_LE(difference(logits_of(wide, ids), expected), 1e-10 * largest) << name;
    EXPECT_LE(difference(logits_of(narrow, ids), expected), 2e-5 * largest) << name;
  }
}

TEST(Options, HaveAsManyParametersAsTheFormulaSays) {
  for (const auto& [name, config] : options()) {
    const ModelConfig c = config.resolved(kVocab);
    EXPECT_EQ(parameter_count(c), testing::counted_by_formula(c)) << name;
  }
}

TEST(Options, MakeADifferenceEach) {
  const at::Tensor ids = tokens(13);
  std::vector<at::Tensor> seen;
  for (const auto& [name, config] : options()) {
    if (config == small() || name == "qk norm, interleaved none") continue;
    const at::Tensor plain = logits_of(make(small(), at::kDouble), ids);
    EXPECT_GT(difference(logits_of(make(config, at::kDouble), ids), plain), 1e-3) << name;
  }
}

TEST(Options, DecodeTokenByTokenAsTheWholePassDoes) {
  const at::Tensor ids = tokens(12);
  for (const auto& [name, config] : options()) {
    const Transformer model = make(config, at::kDouble);
    const at::Tensor whole = logits_of(model, ids);
    DecodeState state = model.make_decode_state(1, 12);
    at::Tensor steps = model.decode(ids.narrow(1, 0, 5), state, true)[0];
    for (int64_t t = 5; t < 12; ++t)
      steps = at::cat({steps, model.decode(ids.narrow(1, t, 1), state)}, 0);
    EXPECT_LE(difference(steps, whole), 1e-10) << name;
  }
}

TEST(Options, HaveGradientsThatCheckpointingRepeatsAndDifferencesConfirm) {
  const at::Tensor ids = tokens(9), targets = at::roll(ids, -1, 1);
  for (const auto& [name, config] : options()) {
    Transformer model = make(config, at::kDouble);
    ModelInput input;
    input.tokens_bt = ids;
    const auto loss = [&] { return model.loss(input, targets, 0.0, nullptr, 1e-2).loss; };
    loss().backward();
    std::vector<at::Tensor> first;
    for (Parameter& p : model.parameters().all()) {
      ASSERT_TRUE(p.value.grad().defined()) << name << ": " << p.name;
      first.push_back(p.value.grad().clone());
      p.value.mutable_grad() = at::Tensor();
    }
    model.compute().checkpoint_layers = true;
    loss().backward();
    size_t i = 0;
    double slope = 0.0;
    for (Parameter& p : model.parameters().all()) {
      EXPECT_LE(difference(first[i], p.value.grad()), 1e-6) << name << ": " << p.name;
      slope += (first[i].to(at::kDouble) *
                at::cos(at::arange(p.value.numel(), at::kDouble)).view(p.value.sizes()))
                   .sum()
                   .item<double>();
      ++i;
    }
    const double h = 1e-4;
    const auto moved = [&](double by) {
      const at::NoGradGuard no_grad;
      for (Parameter& p : model.parameters().all())
        p.value.add_(at::cos(at::arange(p.value.numel(), at::kDouble)).view(p.value.sizes()), by);
      return model.loss(input, targets, 0.0, nullptr, 1e-2).loss.item<double>();
    };
    const double above = moved(h), below = moved(-2.0 * h);
    EXPECT_NEAR((above - below) / (2.0 * h), slope, 2e-2 * (std::abs(slope) + 1.0)) << name;
  }
}

TEST(Options, TrainTheSameFusedAsByPlainOperations) {
  const at::Tensor ids = tokens(11), targets = at::roll(ids, -1, 1);
  for (const auto& [name, config] : options()) {
    Transformer wide = make(config, at::kDouble), narrow = make(config, at::kFloat);
    ModelInput input;
    input.tokens_bt = ids;
    for (Transformer* model : {&wide, &narrow})
      model->loss(input, targets, 0.0, nullptr, 1e-3).loss.backward();
    for (const Parameter& p : wide.parameters().all()) {
      const at::Tensor other = narrow.parameters().find(p.name)->value.grad();
      const double largest = p.value.grad().abs().max().item<double>();
      EXPECT_LE(difference(p.value.grad(), other), 1e-4 * largest + 1e-6) << name << ": " << p.name;
    }
  }
}

TEST(Options, StartAsTheirSchemeSays) {
  const auto deviation = [](InitSpec::Kind kind, const char* name) {
    ModelConfig c = small();
    c.width = 64, c.head_dim = 16, c.ffn_width = 256, c.biases = {true, true, true};
    c.init.kind = kind;
    const Transformer model(c.resolved(4096), 1);
    return model.parameters().find(name)->value.detach().std().item<double>();
  };
  const char *down = "model.layers.1.mlp.down_proj.weight",
             *out = "model.layers.1.self_attn.o_proj.weight",
             *up = "model.layers.1.mlp.up_proj.weight", *embedding = "model.embed_tokens.weight",
             *bias = "model.layers.1.mlp.up_proj.bias";
  using Kind = InitSpec::Kind;
  EXPECT_NEAR(deviation(Kind::width, up), 1.0 / 8,
              0.01);  // 1/sqrt(64); the cut at 3 sigma takes 1.3 %
  EXPECT_NEAR(deviation(Kind::width, down), 1.0 / 16, 0.002);
  EXPECT_NEAR(deviation(Kind::fan_in, down), 1.0 / 16, 0.002);
  EXPECT_NEAR(deviation(Kind::torch, up), 1.0 / 8 / std::sqrt(3.0), 0.002);
  EXPECT_NEAR(deviation(Kind::torch, embedding), 1.0, 0.01);
  EXPECT_NEAR(deviation(Kind::torch, bias), 1.0 / 8 / std::sqrt(3.0), 0.01);
  EXPECT_NEAR(deviation(Kind::normal, out), 0.02, 0.001);
  EXPECT_NEAR(deviation(Kind::gpt2, out), 0.02 / std::sqrt(6.0), 0.0005);
  EXPECT_NEAR(deviation(Kind::gpt2, down), 0.02 / std::sqrt(6.0), 0.0005);
  EXPECT_NEAR(deviation(Kind::gpt2, up), 0.02, 0.001);
  EXPECT_EQ(deviation(Kind::gpt2, bias), 0.0);
}

TEST(Options, ChooseAFeedForwardOfTheSameNumberOfParameters) {
  ModelConfig c = small();
  c.width = 768, c.head_dim = 192, c.ffn_width = 0;
  EXPECT_EQ(c.resolved(kVocab).ffn_width, 2048);
  const int64_t with_gate = parameter_count(c.resolved(kVocab));
  c.feed_forward = FeedForward::gelu;
  EXPECT_EQ(c.resolved(kVocab).ffn_width, 3072);
  EXPECT_EQ(parameter_count(c.resolved(kVocab)), with_gate);
  c.ffn_multiple = 1000;
  EXPECT_EQ(c.resolved(kVocab).ffn_width, 3000);
}

TEST(Options, PadTheVocabulary) {
  ModelConfig c = small();
  c.vocab_multiple = 64;
  EXPECT_EQ(c.resolved(50).vocab_size, 64);
  EXPECT_EQ(c.resolved(64).vocab_size, 64);
  EXPECT_EQ(c.resolved(65).vocab_size, 128);
}

// 7.4: alpha (ln Z)^2 is trained on and not reported.
TEST(ZLoss, AddsToTheLossAndNotToTheNegativeLogLikelihood) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    Transformer model = make(small(), dtype);
    const at::Tensor ids = tokens(8), targets = at::roll(ids, -1, 1);
    ModelInput input;
    input.tokens_bt = ids;
    const LossResult plain = model.loss(input, targets),
                     with = model.loss(input, targets, 0.0, nullptr, 0.1);
    const at::Tensor lse = logits_of(model, ids).logsumexp(-1);
    EXPECT_NEAR(with.nll_sum.item<double>(), plain.nll_sum.item<double>(), 1e-6);
    EXPECT_NEAR(with.loss.item<double>() - plain.loss.item<double>(),
                0.1 * lse.square().mean().item<double>(), 1e-4);
  }
}

// 7.6: ln Z of logits is what logsumexp says, also through scale and cap.
TEST(LogitTransform, GivesTheGradientOfTheComposedFormula) {
  const at::Tensor hidden = testing::random_normal({7, 6}, 1),
                   weight = testing::random_normal({11, 6}, 2);
  const at::Tensor targets = at::tensor({3, 0, -1, 10, 5, 5, 2}, at::kLong);
  for (const LogitTransform rule :
       {LogitTransform{.scale = 0.5}, LogitTransform{.scale = 2.0, .cap = 1.5},
        LogitTransform{.cap = 3.0, .z_loss = 0.2}}) {
    const auto gradients = [&](at::ScalarType dtype) {
      const at::Tensor h = hidden.to(dtype).clone().set_requires_grad(true),
                       w = weight.to(dtype).clone().set_requires_grad(true);
      linear_cross_entropy(h, w, targets, 0.25, 3, rule).total.backward();
      return std::pair{h.grad(), w.grad()};
    };
    const auto [h64, w64] = gradients(at::kDouble);
    const auto [h32, w32] = gradients(at::kFloat);
    EXPECT_LE(difference(h64, h32), 1e-5);
    EXPECT_LE(difference(w64, w32), 1e-5);
  }
}

TEST(Options, AreRefusedByNameWhereTheyHaveNoMeaning) {
  const auto resolved = [](auto change) {
    ModelConfig c = small();
    change(c);
    return c.resolved(kVocab);
  };
  EXPECT_ERROR(ConfigError,
               resolved([](ModelConfig& c) { c.attention.spec.bias.kind = BiasSpec::Kind::t5; }),
               "t5", "model.positions", "rope");
  EXPECT_ERROR(ConfigError, resolved([](ModelConfig& c) {
                 c.positions = Positions::learned;
                 c.rope.theta = 5e5;
               }),
               "model.rope", "learned");
  EXPECT_ERROR(ConfigError, resolved([](ModelConfig& c) {
                 c.positions = Positions::none;
                 c.qk_norm = QkNorm::weightless;
               }),
               "weightless", "none");
  EXPECT_ERROR(ConfigError, resolved([](ModelConfig& c) {
                 c.query_init = 2.5;
                 c.qk_norm = QkNorm::weightless;
               }),
               "query_init", "2.5");
  EXPECT_ERROR(ConfigError, resolved([](ModelConfig& c) { c.attention.full.every = 2; }),
               "attention.full", "mask");
  EXPECT_ERROR(ConfigError, resolved([](ModelConfig& c) {
                 c.attention.spec.mask.window = 4;
                 c.attention.full.positions = false;
               }),
               "positions", "full layers");
  EXPECT_ERROR(ConfigError, resolved([](ModelConfig& c) {
                 c.attention.spec.mask.window = 4;
                 c.attention.full.layers = {3};
               }),
               "attention.full.layers", "3");
  EXPECT_ERROR(ConfigError, resolved([](ModelConfig& c) { c.logit_cap = -1; }), "logit_cap", "-1");
  for (const BlockLayout block : {BlockLayout::post, BlockLayout::output}) {
    EXPECT_ERROR(ConfigError, resolved([&](ModelConfig& c) {
                   c.norm_depth_scale = HeadOutputSpec::DepthScale::lambda;
                   c.block = block;
                 }),
                 "norm_depth_scale", "lambda", std::string(enum_name(block)));
  }
  EXPECT_ERROR(ConfigError, resolved([](ModelConfig& c) { c.logit_scale = 0; }), "logit_scale");
  EXPECT_ERROR(ConfigError, resolved([](ModelConfig& c) { c.init.std = 0; }), "init.std");
  EXPECT_ERROR(ConfigError, resolved([](ModelConfig& c) { c.vocab_multiple = 0; }),
               "vocab_multiple");
  EXPECT_ERROR(ConfigError, resolved([](ModelConfig& c) {
                 c.rope.scaling.kind = RopeScaling::Kind::yarn;
                 c.rope.scaling.factor = 4;
               }),
               "yarn", "original_context");
}

TEST(Options, RefuseTokensBeyondLearnedPositions) {
  ModelConfig c = small();
  c.positions = Positions::learned;
  const Transformer model = make(c, at::kFloat);
  EXPECT_ERROR(ShapeError, logits_of(model, tokens(33)), "32", "33");
  c.positions = Positions::sinusoidal;
  EXPECT_EQ(logits_of(make(c, at::kFloat), tokens(33)).size(0), 33);
}

// 6.2: a dynamic rule takes the length of the whole request, so decoding equals the whole pass.
TEST(DynamicScaling, DecodesPastTheTrainedLengthAsTheWholePassDoes) {
  ModelConfig c = small();
  c.rope.scaling = {.kind = RopeScaling::Kind::dynamic_ntk, .factor = 2.0, .original_context = 8};
  const Transformer model = make(c, at::kDouble);
  const at::Tensor ids = tokens(24), whole = logits_of(model, ids);
  DecodeState state = model.make_decode_state(1, 24);
  at::Tensor steps = model.decode(ids.narrow(1, 0, 4), state, true)[0];
  for (int64_t t = 4; t < 24; ++t)
    steps = at::cat({steps, model.decode(ids.narrow(1, t, 1), state)}, 0);
  EXPECT_LE(difference(steps, whole), 1e-10);
  ModelConfig fixed = c;
  fixed.rope.scaling = {};
  EXPECT_GT(difference(whole, logits_of(make(fixed, at::kDouble), ids)), 1e-6);
}

// M-7: the gate's bias starts at 0; M-8: both readings of the depth scale.
TEST(HeadOutput, GatesStartWithoutBiasAndDepthScalesAreTheTwoReadings) {
  ModelConfig c = testing::tiny_config();
  c.attention.spec.head_output = {.norm = HeadOutputSpec::Norm::rms,
                                  .depth_scale = HeadOutputSpec::DepthScale::inverse_sqrt,
                                  .gate = HeadOutputSpec::Gate::scalar};
  const Transformer model(c.resolved(c.vocab_size), 1);
  const Parameter* bias = model.parameters().find("model.layers.1.self_attn.head_gate.bias");
  ASSERT_NE(bias, nullptr);
  EXPECT_EQ(bias->value.item<float>(), 0.0f);
  HeadOutputSpec output = c.attention.spec.head_output;
  EXPECT_DOUBLE_EQ(output.factor(0), 1.0);
  EXPECT_DOUBLE_EQ(output.factor(3), 0.5);
  output.depth_scale = HeadOutputSpec::DepthScale::lambda;
  EXPECT_NEAR(output.factor(11), 1.0 - 0.777870, 1e-6);
}

}  // namespace
}  // namespace fovea::options_test
