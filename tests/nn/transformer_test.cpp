// The decoder: counts, purity, causality, packing, decoding, checkpointing, the identities of Focal
// Attention.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/transformer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/config/fields.h"
#include "fovea/nn/ops.h"
#include "tests/support/count_formula.h"

namespace fovea::transformer_test {
namespace {

ModelConfig small() {
  ModelConfig c;
  c.layers = 2;
  c.width = 24;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 6;
  c.ffn_width = 40;
  c.context = 32;
  c.qk_norm = QkNorm::head_rms;
  return c;
}

ModelConfig learned(TemperatureSpec::Form form = TemperatureSpec::Form::prefix) {
  ModelConfig c = small();
  c.attention.spec.temperature.kind = TemperatureSpec::Kind::learned;
  c.attention.spec.temperature.form = form;
  return c;
}

constexpr int64_t kVocab = 50;

Transformer make(const ModelConfig& c, at::ScalarType dtype = at::kFloat) {
  Transformer model(c.resolved(kVocab), 3);
  model.compute().dtype = dtype;
  for (Parameter& p :
       model.parameters()
           .all()) {  // temperatures start at 0 or at their bound: move them, so that they matter
    if (p.origin == Parameter::Origin::added) {
      const at::NoGradGuard no_grad;
      p.value.add_(at::sin(at::arange(p.value.numel()) + 1).view(p.value.sizes()), 0.05);
    }
  }
  return model;
}

at::Tensor tokens(int64_t b, int64_t t, uint64_t seed = 5) {
  return at::randint(0, kVocab, {b, t}, at::detail::createCPUGenerator(seed),
                     at::TensorOptions(at::kLong));
}

ModelInput input_of(const at::Tensor& ids) {
  ModelInput input;
  input.tokens_bt = ids;
  return input;
}

/// Zeros where nothing reaches the parameter: state, and groups under the hard rule.
at::Tensor gradient_of(const Parameter& p) {
  return p.value.grad().defined() ? p.value.grad().clone() : at::zeros_like(p.value);
}

double max_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

std::vector<std::pair<std::string, ModelConfig>> variants() {
  std::vector<std::pair<std::string, ModelConfig>> all{{"standard", small()},
                                                       {"learned", learned()}};
  ModelConfig c = small();
  c.attention.spec.temperature.value = 0.4;
  all.emplace_back("focal", c);
  c = small();
  c.attention.spec.mask.window = 5;
  c.attention.spec.mask.sinks = 2;
  c.attention.spec.soft_cap = 3.0;
  c.attention.spec.sink_logit = true;
  all.emplace_back("window, sinks, soft-cap, sink logit", c);
  c = small();
  c.attention.spec.bias.kind = BiasSpec::Kind::t5;
  c.positions = Positions::none;
  c.qk_norm = QkNorm::none;
  c.tied = false;
  all.emplace_back("t5, untied", c);
  c = small();
  c.attention.spec.multi_token = {{3, 5}, {2, 4}};
  c.attention.multi_token.layers = {1};
  c.attention.spec.head_mix = {HeadMixSpec::Kind::full, HeadMixSpec::Kind::groups, 2};
  c.attention.spec.head_output.norm = HeadOutputSpec::Norm::rms;
  c.attention.spec.head_output.gate = HeadOutputSpec::Gate::scalar;
  all.emplace_back("multi-token", c);
  c = small();
  c.attention.spec.head_mix = {HeadMixSpec::Kind::full, HeadMixSpec::Kind::full, 0};
  c.attention.spec.head_output.depth_scale = HeadOutputSpec::DepthScale::inverse_sqrt;
  c.attention.spec.head_output.gate = HeadOutputSpec::Gate::full;
  all.emplace_back("talking heads, full gate", c);
  c = small();
  c.attention.spec.kv_shift = {.keys = true, .values = true, .start = 0.3};
  all.emplace_back("kv shift", c);
  c = small();
  c.attention.spec.differential = true;
  all.emplace_back("differential", c);
  using Focus = FocusSpec;
  const auto focus = [&](Focus::Gate gate, Focus::Potentials potentials) {
    c = small();
    c.attention.spec.focus = {.gate = gate, .groups = 4, .top_k = 1, .window = 3, .sinks = 1};
    c.attention.spec.focus.width = 5, c.attention.spec.focus.temperature = 0.5;
    c.attention.spec.focus.potentials = potentials, c.attention.spec.focus.chunk = 4;
    all.emplace_back(fmt::format("focus {} {}", enum_name(gate), enum_name(potentials)), c);
  };
  focus(Focus::Gate::log, Focus::Potentials::ema);
  focus(Focus::Gate::logsig, Focus::Potentials::chunk);
  focus(Focus::Gate::hard, Focus::Potentials::ema);
  all.back().second.attention.spec.multi_token = {{2, 3}, {2, 2}};
  all.back().second.attention.focus.layers = {1};
  return all;
}

TEST(Transformer, CountsItsParametersAsTheFormulaSays) {
  for (const auto& [name, config] : variants()) {
    const ModelConfig c = config.resolved(kVocab);
    EXPECT_EQ(Transformer(c, 0).parameters().count(), testing::counted_by_formula(c)) << name;
    EXPECT_EQ(parameter_count(c), testing::counted_by_formula(c)) << name;
  }
}

int64_t added_parameters(const ModelConfig& c) {
  ModelConfig plain = c;
  plain.attention = {};
  return parameter_count(c.resolved(kVocab)) - parameter_count(plain.resolved(kVocab));
}

// 13.7 and spec 3.3: the 880M model of the paper's Table 8 has 29,592 parameters more than its
// baseline; 13.8: talking heads 12,288 in 24 layers of 16 heads.
TEST(Transformer, AddsAsManyParametersAsThePapersCount) {
  ModelConfig c;
  c.layers = 24, c.width = 1536, c.heads = 16;
  c.attention.spec.head_mix = {HeadMixSpec::Kind::full, HeadMixSpec::Kind::full, 0};
  EXPECT_EQ(added_parameters(c), 12288);
  c.attention.spec.multi_token = {{6, 11}, {6, 11}};
  c.attention.multi_token.layers = {2, 6, 10, 14, 18, 22};
  c.attention.spec.head_mix = {HeadMixSpec::Kind::full, HeadMixSpec::Kind::groups, 16};
  c.attention.spec.head_output.norm = HeadOutputSpec::Norm::rms;
  c.attention.spec.head_output.gate = HeadOutputSpec::Gate::scalar;
  EXPECT_EQ(added_parameters(c), 29592);
}

// 1.3: 4 d for lambda and 2 d for the norm in each layer, 13,824 in the paper's Table 8; the start
// of lambda is near lambda_init; 13.6.
TEST(Transformer, DifferentialAddsAsManyParametersAsThePaperCounts) {
  ModelConfig c;
  c.layers = 24, c.width = 1536, c.heads = 16;
  c.attention.spec.differential = true;
  EXPECT_EQ(added_parameters(c), 13824);
  c = small();
  c.attention.spec.differential = true;
  const ModelConfig resolved = c.resolved(kVocab);
  EXPECT_EQ(resolved.layer_attention(1).value_width(), 12);
  EXPECT_NEAR(resolved.layer_attention(1).head_output.factor(1), 1.0 - 0.355509, 1e-6);
  const Transformer model(resolved, 3);
  const at::Tensor vector = model.parameters().find("model.layers.0.self_attn.lambda_q1")->value;
  EXPECT_EQ(vector.sizes(), at::IntArrayRef({6}));
  EXPECT_NEAR(vector.std().item<double>(), 0.1, 0.07);
}

// 3.5, 13.1: Multi-Token and talking-heads layers start as standard attention, so they can be put
// into a trained model.
TEST(Transformer, KernelsAndMixesStartAsStandardAttention) {
  ModelConfig c = small();
  c.attention.spec.multi_token = {{6, 11}, {6, 10}};
  c.attention.spec.head_mix = {HeadMixSpec::Kind::full, HeadMixSpec::Kind::groups, 2};
  Transformer plain(small().resolved(kVocab), 3), tokens_and_heads(c.resolved(kVocab), 3);
  plain.compute().dtype = tokens_and_heads.compute().dtype = at::kDouble;
  const ModelInput input = input_of(tokens(2, 17));
  EXPECT_LT(max_difference(plain.hidden(input), tokens_and_heads.hidden(input)), 1e-13);
}

// M-19: kernels, mixes, head norms and gates are exempt from weight decay unless asked for.
TEST(Transformer, AddedParametersDecayOnlyOnRequest) {
  for (const bool asked : {false, true}) {
    ModelConfig c = small();
    c.attention.spec.multi_token.before = {2, 3};
    c.attention.spec.head_mix.after = HeadMixSpec::Kind::full;
    c.attention.decay_added = asked;
    const Transformer model(c.resolved(kVocab), 3);
    for (const char* name : {"key_query_before.weight", "head_mix_after.weight"}) {
      const Parameter* p = model.parameters().find(std::string("model.layers.1.self_attn.") + name);
      ASSERT_NE(p, nullptr);
      EXPECT_EQ(p->decay, asked);
      EXPECT_EQ(p->origin, Parameter::Origin::added);
    }
  }
}

// 3.5.
TEST(Transformer, KernelsStartAsTheRecipeSays) {
  ModelConfig c = small();
  c.attention.spec.multi_token.before = {3, 5};
  const auto start = [&](KernelStart init) {
    c.attention.multi_token.init = init;
    return Transformer(c.resolved(kVocab), 3)
        .parameters()
        .find("model.layers.0.self_attn.key_query_before.weight")
        ->value.detach();
  };
  EXPECT_NEAR(start(KernelStart::constant).mean().item<double>(), 0.3, 1e-6);
  const at::Tensor uniform = start(KernelStart::uniform);
  EXPECT_LE(uniform.abs().max().item<double>(), 1.0);
  EXPECT_NEAR(uniform.std().item<double>(), 1 / std::sqrt(3.0), 0.1);
  EXPECT_EQ(start(KernelStart::identity).sum().item<double>(), 4.0);
}

TEST(Transformer, SameSeedSameNumbersOtherSeedOthers) {
  const ModelConfig c = small().resolved(kVocab);
  const Transformer a(c, 1), b(c, 1), d(c, 2);
  const char* name = "model.layers.1.mlp.up_proj.weight";
  EXPECT_TRUE(at::equal(a.parameters().find(name)->value, b.parameters().find(name)->value));
  EXPECT_FALSE(at::equal(a.parameters().find(name)->value, d.parameters().find(name)->value));
  EXPECT_NEAR(a.parameters().find(name)->value.std().item<double>(), 1 / std::sqrt(24.0), 0.02);
}

// Spec 13.3: tokens after i do not reach outputs up to i, bit for bit.
TEST(Transformer, FutureTokensDoNotReachThePast) {
  for (const auto& [name, config] : variants()) {
    const Transformer model = make(config);
    const at::Tensor ids = tokens(2, 20);
    at::Tensor changed = ids.clone();
    changed.narrow(1, 12, 8).copy_(tokens(2, 8, 77));
    const at::Tensor a = model.hidden(input_of(ids)), b = model.hidden(input_of(changed));
    EXPECT_TRUE(at::equal(a.narrow(1, 0, 12), b.narrow(1, 0, 12))) << name;
    EXPECT_FALSE(at::equal(a, b)) << name;
  }
}

// F-1: the paper's sequence mean leaks the future.
TEST(Transformer, SequenceTemperatureLeaksTheFuture) {
  const Transformer model = make(learned(TemperatureSpec::Form::sequence));
  const at::Tensor ids = tokens(1, 20);
  at::Tensor changed = ids.clone();
  changed.narrow(1, 12, 8).copy_(tokens(1, 8, 77));
  EXPECT_GT(max_difference(model.hidden(input_of(ids)).narrow(1, 0, 12),
                           model.hidden(input_of(changed)).narrow(1, 0, 12)),
            0.0);
}

// Spec 9.10, 13.5: packed documents give the logits of the documents alone.
TEST(Transformer, PackedDocumentsEqualDocumentsAlone) {
  for (const auto& [name, config] : variants()) {
    const Transformer model = make(config, at::kDouble);
    const at::Tensor first = tokens(1, 7, 1), second = tokens(1, 11, 2);
    ModelInput packed = input_of(at::cat({first, second}, 1));
    packed.documents_bt = at::cat({at::zeros({1, 7}, at::kLong), at::ones({1, 11}, at::kLong)}, 1);
    packed.positions_bt = at::cat({at::arange(7), at::arange(11)}).unsqueeze(0).to(at::kLong);
    const at::Tensor together = model.hidden(packed);
    EXPECT_LT(max_difference(together.narrow(1, 0, 7), model.hidden(input_of(first))), 1e-12)
        << name;
    EXPECT_LT(max_difference(together.narrow(1, 7, 11), model.hidden(input_of(second))), 1e-12)
        << name;
  }
}

// Spec 13.4: prefill and single steps equal the full forward pass, for any split.
TEST(Transformer, DecodingEqualsTheFullForward) {
  for (const auto& [name, config] : variants()) {
    const Transformer model = make(config, at::kDouble);
    const at::Tensor ids = tokens(2, 14);
    const at::Tensor full = model.logits(model.hidden(input_of(ids))).detach();
    for (const int64_t prefill : {1, 3, 13}) {
      DecodeState state = model.make_decode_state(2, 14);
      at::Tensor all = model.decode(ids.narrow(1, 0, prefill), state, true);
      for (int64_t i = prefill; i < 14; ++i)
        all = at::cat({all, model.decode(ids.narrow(1, i, 1), state, true)}, 1);
      EXPECT_LT(max_difference(all, full), 1e-11) << name << ", prefill " << prefill;
    }
  }
}

// The same with the product of few rows and the weights converted once. float32: 1e-5 of the
// largest logit; bfloat16: at most twice the error of the full forward pass.
TEST(Transformer, DecodingOneTokenIsAsExactAsTheFullForwardInEveryDtype) {
  for (const auto& [name, config] : variants()) {
    const at::Tensor ids = tokens(1, 14);
    const auto logits = [&](at::ScalarType dtype, bool decoded) {
      Transformer model = make(config, at::kDouble);
      model.compute().dtype = dtype;
      const at::NoGradGuard no_grad;
      if (!decoded) return model.logits(model.hidden(input_of(ids))).to(at::kDouble);
      DecodeState state = model.make_decode_state(1, 14);
      std::vector<at::Tensor> all;
      for (int64_t i = 0; i < 14; ++i)
        all.push_back(model.decode(ids.narrow(1, i, 1), state, true));
      return at::cat(all, 1).to(at::kDouble);
    };
    const at::Tensor truth = logits(at::kDouble, false);
    const double scale = truth.abs().max().item<double>();
    EXPECT_LT(max_difference(logits(at::kFloat, true), truth), 1e-5 * scale) << name;
    const double full = max_difference(logits(at::kBFloat16, false), truth);
    EXPECT_LT(max_difference(logits(at::kBFloat16, true), truth), 2 * full) << name;
  }
}

TEST(Transformer, MatricesHeldInBfloat16GiveTheSameHiddenStatesAndDecodeLikeThem) {
  for (const auto& [name, config] : variants()) {
    const at::NoGradGuard no_grad;
    const at::Tensor ids = tokens(1, 14);
    Transformer model = make(config, at::kFloat);
    model.compute().dtype = at::kBFloat16;
    const at::Tensor before = model.hidden(input_of(ids)), logits = model.logits(before);
    model.hold_matrices_in(at::kBFloat16);
    EXPECT_EQ(model.parameters().count(/*only_trainable=*/true), 0);
    EXPECT_EQ(model.parameters().find("model.norm.weight")->value.scalar_type(), at::kFloat);
    EXPECT_EQ(
        model.parameters().find("model.layers.0.self_attn.q_proj.weight")->value.scalar_type(),
        at::kBFloat16);
    EXPECT_TRUE(at::equal(model.hidden(input_of(ids)), before)) << name;
    DecodeState state = model.make_decode_state(1, 14);
    std::vector<at::Tensor> all;
    for (int64_t i = 0; i < 14; ++i) all.push_back(model.decode(ids.narrow(1, i, 1), state, true));
    EXPECT_LT(max_difference(at::cat(all, 1), logits), 0.05 * logits.abs().max().item<double>())
        << name;
  }
}

// Spec 10.1 and F-5: with QK-norm a constant temperature is a q gain that is 1/t larger.
TEST(Transformer, ConstantTemperatureEqualsALargerQueryGain) {
  ModelConfig focal = small(), folded = small();
  focal.attention.spec.temperature.value = 0.4;
  folded.query_init = 2.5;
  const Transformer a = make(focal, at::kDouble), b = make(folded, at::kDouble);
  const at::Tensor ids = tokens(2, 16);
  EXPECT_LT(max_difference(a.hidden(input_of(ids)), b.hidden(input_of(ids))), 1e-6);
  focal.qk_norm = folded.qk_norm = QkNorm::none;  // then it is W_q
  const Transformer c = make(focal, at::kDouble), d = make(folded, at::kDouble);
  EXPECT_LT(max_difference(c.hidden(input_of(ids)), d.hidden(input_of(ids))), 1e-6);
}

TEST(Transformer, CheckpointedLayersHaveTheSameGradients) {
  for (const auto& [name, config] : variants()) {
    ModelConfig dropped = config;
    dropped.dropout = 0.2;
    Transformer model = make(dropped);
    ModelInput input = input_of(tokens(2, 16));
    input.training = true;
    input.dropout_seed = 9;
    const at::Tensor targets = tokens(2, 16, 8);
    const auto gradients = [&](bool checkpoint) {
      model.compute().checkpoint_layers = checkpoint;
      model.loss(input, targets).loss.backward();
      std::vector<at::Tensor> all;
      for (Parameter& p : model.parameters().all()) {
        all.push_back(gradient_of(p));
        p.value.mutable_grad().reset();
      }
      return all;
    };
    const std::vector<at::Tensor> plain = gradients(false), recomputed = gradients(true);
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(at::allclose(plain[i], recomputed[i], 1e-5, 1e-7))
          << name << ": " << model.parameters().all()[i].name;
    }
  }
}

// The float32 kernels against the same model in float64 (design, contract "Numbers").
TEST(Transformer, Float32GradientsAreWithinOneInTenThousandOfFloat64) {
  for (const auto& [name, config] : variants()) {
    Transformer model = make(config);
    const ModelInput input = input_of(tokens(2, 19));
    const at::Tensor targets = tokens(2, 19, 8);
    std::vector<at::Tensor> gradients[2];
    for (const bool wide : {false, true}) {
      model.compute().dtype = wide ? at::kDouble : at::kFloat;
      model.loss(input, targets).loss.backward();
      for (Parameter& p : model.parameters().all()) {
        gradients[wide].push_back(gradient_of(p));
        p.value.mutable_grad().reset();
      }
    }
    for (size_t i = 0; i < gradients[0].size(); ++i) {
      const double scale = gradients[1][i].abs().max().item<double>() + 1e-6;
      EXPECT_LT(max_difference(gradients[0][i], gradients[1][i]), 2e-4 * scale)
          << name << ": " << model.parameters().all()[i].name;
    }
  }
}

TEST(Transformer, LossIsTheMeanOverTargetsAndIgnoresNegativeOnes) {
  const Transformer model = make(small());
  const ModelInput input = input_of(tokens(2, 8));
  at::Tensor targets = tokens(2, 8, 8);
  targets.narrow(1, 5, 3).fill_(-1);
  const LossResult r = model.loss(input, targets);
  EXPECT_EQ(r.targets.item<int64_t>(), 10);
  EXPECT_NEAR(r.loss.item<double>(), model.token_nll(input, targets).sum().item<double>() / 10,
              1e-5);
  const at::Tensor plain = at::cross_entropy_loss(model.logits(model.hidden(input)).flatten(0, 1),
                                                  targets.flatten(), {}, at::Reduction::Mean, -1);
  EXPECT_NEAR(r.loss.item<double>(), plain.item<double>(), 1e-5);
  EXPECT_EQ(model.token_nll(input, targets).narrow(1, 5, 3).abs().max().item<double>(), 0.0);
}

TEST(Transformer, AttentionMapRowsSumToOneAndAreCausalInEveryLayer) {
  for (const auto& config : {small(), learned()}) {
    const std::vector<at::Tensor> maps = make(config).attention_maps(input_of(tokens(1, 9)));
    ASSERT_EQ(maps.size(), 2u);
    EXPECT_GT(max_difference(maps[0], maps[1]), 1e-3);
    for (const at::Tensor& map : maps) {
      EXPECT_EQ(map.sizes(), at::IntArrayRef({4, 9, 9}));
      EXPECT_LT(max_difference(map.sum(-1), at::ones({4, 9})), 1e-5);
      EXPECT_EQ(map.triu(1).abs().max().item<float>(), 0.0f);
    }
  }
}

TEST(ModelConfig, ImpossibleSizesAreRefusedByKey) {
  const auto message = [](auto change) {
    ModelConfig c = small();
    change(c);
    try {
      c.resolved(kVocab);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message([](ModelConfig& c) { c.kv_heads = 3; }).find("model.kv_heads"),
            std::string::npos);
  EXPECT_NE(message([](ModelConfig& c) { c.layers = 0; }).find("model.layers"), std::string::npos);
  EXPECT_NE(message([](ModelConfig& c) { c.head_dim = 0, c.width = 23; }).find("model.heads"),
            std::string::npos);
  EXPECT_NE(message([](ModelConfig& c) { c.vocab_size = 7; }).find("model.vocab_size"),
            std::string::npos);
  EXPECT_NE(message([](ModelConfig& c) {
              c.attention.temperature_per_layer = {0.4};
            }).find("temperature_per_layer"),
            std::string::npos);
  EXPECT_NE(message([](ModelConfig& c) {
              c.attention.multi_token.layers = {0, 2};
            }).find("multi_token.layers"),
            std::string::npos);
  EXPECT_NE(message([](ModelConfig& c) { c.query_init = 0; }).find("model.query_init"),
            std::string::npos);
}

// F-9: half way the logits are those of the temperature half way.
TEST(Transformer, ARampedTemperatureLiesBetweenOneAndItsValue) {
  ModelConfig c = small();
  c.attention.spec.temperature.value = 0.4;
  Transformer ramped(c.resolved(kVocab), 3);
  const ModelInput in = input_of(tokens(2, 9));
  const at::NoGradGuard no_grad;
  for (const double share : {0.0, 0.5, 1.0}) {
    ModelConfig direct = c;
    direct.attention.spec.temperature.value = 1.0 + share * (0.4 - 1.0);
    ramped.compute().temperature_ramp = share;
    const at::Tensor expected = Transformer(direct.resolved(kVocab), 3).hidden(in);
    EXPECT_TRUE(at::allclose(ramped.hidden(in), expected, 1e-6, 1e-6)) << share;
  }
}

// F-9: layers one by one and the fused decoder read the temperature of the ramp too.
TEST(Transformer, DecodesWithTheTemperatureOfTheRamp) {
  ModelConfig c = small();
  c.width = 32, c.head_dim = 8;  // a head size with kernels
  c.attention.temperature_per_layer = {0.3, 0.5};
  Transformer model = make(c);
  const at::Tensor ids = tokens(1, 9);
  const at::NoGradGuard no_grad;
  const auto full = [&](double ramp) {
    model.compute().temperature_ramp = ramp;
    return model.logits(model.hidden(input_of(ids)));
  };
  const at::Tensor whole = full(1.0), half = full(0.5);
  const double scale = half.abs().max().item<double>();
  ASSERT_GT(max_difference(whole, half), 1e-3 * scale);
  for (const bool fused : {false, true}) {
    model.compute().fused_decoder = fused;
    DecodeState state = model.make_decode_state(1, 9);
    std::vector<at::Tensor> all;
    for (int64_t i = 0; i < 9; ++i) all.push_back(model.decode(ids.narrow(1, i, 1), state, true));
    EXPECT_EQ(state.path.reason.text().empty(), fused) << state.path.reason.text();
    EXPECT_LT(max_difference(at::cat(all, 1), half), 1e-5 * scale) << "fused " << fused;
  }
}

// F-7: what is ten times as large before the norm has the same temperature.
TEST(Transformer, LearnedTemperaturesReadTheNormedInput) {
  Transformer model = make(learned());
  const at::NoGradGuard no_grad;
  const auto named = [&](std::string_view name) { return model.parameters().find(name)->value; };
  const ModelInput in = input_of(tokens(1, 9));
  const double before = model.look(in)[0].temperature;
  named("model.embed_tokens.weight").mul_(10.0);
  EXPECT_NEAR(model.look(in)[0].temperature, before, 1e-3);
  named("model.layers.0.input_layernorm.weight").mul_(3.0);
  EXPECT_GT(std::abs(model.look(in)[0].temperature - before), 1e-2);
}

TEST(ModelConfig, TemperaturePerLayerReachesItsLayer) {
  ModelConfig c = small();
  c.attention.temperature_per_layer = {0.4, 0.8};
  EXPECT_EQ(c.resolved(kVocab).layer_attention(0).temperature.value, 0.4);
  EXPECT_EQ(c.resolved(kVocab).layer_attention(1).temperature.value, 0.8);
}

}  // namespace
}  // namespace fovea::transformer_test
