// Everything at once: Focal x Focus x Multi-Token with window, sinks, documents, soft-cap, grouped
// heads, a position bias and LoRA (issue of the mechanisms; spec 0.1, 13.3, 13.4, 13.5).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "fovea/attention/stages.h"
#include "fovea/nn/lora.h"
#include "fovea/nn/transformer.h"
#include "tests/support/gradcheck.h"

namespace fovea::composition_test {
namespace {

using namespace fovea::testing;

constexpr int64_t kVocab = 50;

ModelConfig everything(FocusSpec::Gate gate) {
  ModelConfig c;
  c.layers = 2, c.width = 24, c.heads = 4, c.kv_heads = 2, c.ffn_width = 40, c.context = 64;
  AttentionSettings& a = c.attention;
  a.spec.temperature.kind = TemperatureSpec::Kind::learned;
  a.spec.soft_cap = 4.0;
  a.spec.multi_token = {{2, 3}, {3, 2}};
  a.multi_token.init = KernelStart::uniform;
  a.multi_token.init_value = 0.5;
  a.spec.head_mix = {HeadMixSpec::Kind::full, HeadMixSpec::Kind::groups, 2};
  a.spec.head_output = {.norm = HeadOutputSpec::Norm::rms, .gate = HeadOutputSpec::Gate::scalar};
  a.spec.focus = {.gate = gate, .groups = 4, .top_k = 1, .window = 3, .sinks = 1, .width = 6};
  a.focus.windowed_layers = true;
  a.spec.mask = {.window = 9, .sinks = 1};
  a.spec.bias.kind = BiasSpec::Kind::alibi;
  c.positions = Positions::none;
  c.lora = {.rank = 3, .targets = {"all-linear"}};
  return c.resolved(kVocab);
}

Transformer model_of(FocusSpec::Gate gate) {
  Transformer model(everything(gate), 3);
  const at::NoGradGuard no_grad;
  for (Parameter& p : model.parameters().all()) {
    const bool still = p.name.ends_with(".lora_B.weight") || p.name.ends_with("temperature.weight");
    if (still) initialise(p.value, {.kind = Init::Kind::normal, .value = 0.2}, 9, p.name);
  }
  model.compute().dtype = at::kDouble;
  return model;
}

ModelInput packed(int64_t changed_from = -1, int64_t changed_to = -1) {
  at::Tensor tokens = (at::arange(40) * 7).remainder(kVocab).view({1, 40}).clone();
  if (changed_from >= 0) tokens.narrow(1, changed_from, changed_to - changed_from).add_(1);
  const at::Tensor documents = at::arange(40).ge(17).to(at::kLong).view({1, 40});
  const at::Tensor positions = at::arange(40).view({1, 40}) - 17 * documents;
  return {
      .tokens_bt = tokens.remainder(kVocab), .documents_bt = documents, .positions_bt = positions};
}

class Everything : public ::testing::TestWithParam<FocusSpec::Gate> {};

TEST_P(Everything, ActsInTheOrderOfTheLaw) {
  const std::string order = describe_pipeline(everything(GetParam()).layer_attention(1));
  size_t last = 0;
  for (const char* part : {"temperature learned", "soft_cap", "convolution 2 x 3", "head mix 4",
                           "alibi", "window 9", "convolution 3 x 2", "head mix 2", "head norm"}) {
    const size_t at = order.find(part);
    ASSERT_NE(at, std::string::npos) << part << " in " << order;
    EXPECT_GE(at, last) << part << " in " << order;
    last = at;
  }
}

TEST_P(Everything, SeesNoLaterTokenAndNoOtherDocument) {
  const Transformer model = model_of(GetParam());
  const at::NoGradGuard no_grad;
  const at::Tensor plain = model.hidden(packed());
  const at::Tensor later = model.hidden(packed(30, 40)), before = model.hidden(packed(0, 17));
  EXPECT_TRUE(later.narrow(1, 0, 30).equal(plain.narrow(1, 0, 30)));
  EXPECT_FALSE(later.equal(plain));
  EXPECT_TRUE(before.narrow(1, 17, 23).equal(plain.narrow(1, 17, 23)));
  EXPECT_FALSE(before.equal(plain));
}

TEST_P(Everything, DecodesToTheFullForwardPass) {
  const Transformer model = model_of(GetParam());
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = packed().tokens_bt;
  const at::Tensor full = model.logits(model.hidden({.tokens_bt = tokens}));
  DecodeState state = model.make_decode_state(1, 40);
  model.decode(tokens.narrow(1, 0, 13), state);
  for (int64_t t = 13; t < 40; ++t) {
    const at::Tensor one = model.decode(tokens.narrow(1, t, 1), state);
    EXPECT_LT((one[0] - full[0][t]).abs().max().item<double>(), 1e-10) << t;
  }
}

TEST_P(Everything, LearnsInEveryPartOfIt) {
  Transformer model = model_of(GetParam());
  model.compute().dtype = at::kFloat;
  ModelInput input = packed();
  input.training = true;
  model.loss(input, input.tokens_bt).loss.backward();
  for (const Parameter& p : model.parameters().all()) {
    if (!p.trainable) continue;
    // Hard groups choose; a choice has no gradient.
    const bool choice =
        GetParam() == FocusSpec::Gate::hard && p.name.find(".focus.") != std::string::npos;
    if (choice) continue;
    ASSERT_TRUE(p.value.grad().defined()) << p.name;
    EXPECT_TRUE(p.value.grad().isfinite().all().item<bool>()) << p.name;
    EXPECT_GT(p.value.grad().abs().max().item<double>(), 0.0) << p.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Gates, Everything,
                         ::testing::Values(FocusSpec::Gate::log, FocusSpec::Gate::hard));

}  // namespace
}  // namespace fovea::composition_test
