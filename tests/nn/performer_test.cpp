// Performer in the decoder: features as state, redraws, decoding, keys (spec 4.2).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "fovea/nn/transformer.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"

namespace fovea::performer_test {
namespace {

using namespace fovea::testing;

constexpr int64_t kVocab = 50;

ModelConfig with_features(int64_t redraw = 0) {
  ModelConfig c;
  c.layers = 2, c.width = 32, c.heads = 4, c.kv_heads = 2, c.ffn_width = 40, c.context = 100;
  c.attention.spec.performer.features = 20;
  c.attention.performer.redraw = redraw;
  return c;
}

at::Tensor tokens(int64_t length = 90) {
  return (at::arange(length) * 7).remainder(kVocab).view({1, length});
}

const at::Tensor& state(const Transformer& model, const std::string& rest, int64_t layer = 1) {
  return model.parameters()
      .find(fmt::format("model.layers.{}.self_attn.performer.{}", layer, rest))
      ->value;
}

void observe(Transformer& model, int64_t steps) {
  ForwardInfo info;
  for (int64_t n = 0; n < steps; ++n) model.observe({&info, 1}, 0.99);
}

TEST(PerformerModel, DecodingInChunksEqualsTheForwardPass) {
  Transformer model(with_features().resolved(kVocab), 3);
  const at::NoGradGuard no_grad;
  ForwardInfo info;
  const at::Tensor whole = model.logits(model.hidden({.tokens_bt = tokens()}, &info));
  EXPECT_EQ(info.path.text(), "fused causal");
  DecodeState cache = model.make_decode_state(1, 90);
  std::vector<at::Tensor> parts{model.decode(tokens().narrow(1, 0, 30), cache, true),
                                model.decode(tokens().narrow(1, 30, 40), cache, true)};
  for (int64_t n = 70; n < 90; ++n)
    parts.push_back(model.decode(tokens().narrow(1, n, 1), cache, true));
  EXPECT_LT(relative_error(at::cat(parts, 1), whole), 1e-4);
}

TEST(PerformerModel, FeaturesFollowFromTheSeedDifferByLayerAndAreNoParameters) {
  const Transformer model(with_features().resolved(kVocab), 3),
      same(with_features().resolved(kVocab), 3), other(with_features().resolved(kVocab), 4);
  EXPECT_EQ(state(model, "features").sizes(), at::IntArrayRef({20, 8}));
  EXPECT_TRUE(state(model, "features").equal(state(same, "features")));
  EXPECT_FALSE(state(model, "features").equal(state(other, "features")));
  EXPECT_FALSE(state(model, "features").equal(state(model, "features", 0)));
  EXPECT_FALSE(state(model, "features").requires_grad());
  ModelConfig plain = with_features();
  plain.attention.spec.performer = {};
  EXPECT_EQ(parameter_count(with_features().resolved(kVocab)),
            parameter_count(plain.resolved(kVocab)));
}

TEST(PerformerModel, ObserveDrawsAnewEverySoManyStepsAndAResumedRunDrawsTheSame) {
  Transformer model(with_features(3).resolved(kVocab), 3);
  const at::Tensor first = state(model, "features").clone();
  observe(model, 2);
  EXPECT_TRUE(state(model, "features").equal(first));
  observe(model, 1);
  const at::Tensor second = state(model, "features").clone();
  EXPECT_FALSE(second.equal(first));
  observe(model, 2);
  EXPECT_TRUE(state(model, "features").equal(second));
  // A model of another seed with this one's state, as a checkpoint restores it.
  Transformer resumed(with_features(3).resolved(kVocab), 9);
  {
    const at::NoGradGuard no_grad;
    for (Parameter& p : resumed.parameters().all())
      p.value.copy_(model.parameters().find(p.name)->value);
  }
  observe(model, 4);
  observe(resumed, 4);
  EXPECT_FALSE(state(model, "features").equal(second));
  EXPECT_TRUE(state(model, "features").equal(state(resumed, "features")));
  EXPECT_TRUE(state(model, "steps").equal(state(resumed, "steps")));
}

TEST(PerformerModel, WithoutRedrawFeaturesStay) {
  Transformer model(with_features().resolved(kVocab), 3);
  const at::Tensor first = state(model, "features").clone();
  observe(model, 50);
  EXPECT_TRUE(state(model, "features").equal(first));
}

TEST(PerformerModel, ActsInTheNamedLayersAndRefusesImpossibleSettingsByKey) {
  ModelConfig c = with_features();
  c.attention.performer.layers = {1};
  c = c.resolved(kVocab);
  EXPECT_FALSE(c.layer_attention(0).performer.active());
  EXPECT_TRUE(c.layer_attention(1).performer.active());
  c.attention.performer.layers = {2};
  EXPECT_ERROR(ConfigError, c.resolved(kVocab), "performer.layers", "2");
  c = with_features(5);
  c.attention.spec.performer.features = 0;
  EXPECT_ERROR(ConfigError, c.resolved(kVocab), "performer", "features");
  c = with_features();
  c.attention.spec.mask.window = 8;
  EXPECT_ERROR(UnsupportedError, c.resolved(kVocab), "performer", "mask.window");
}

}  // namespace
}  // namespace fovea::performer_test
