// Routing and given blocks in the decoder: state that observe() alone changes, decoding, keys
// (spec 4.3).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "fovea/nn/transformer.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"

namespace fovea::routing_test {
namespace {

using namespace fovea::testing;

constexpr int64_t kVocab = 50;

ModelConfig routed() {
  ModelConfig c;
  c.layers = 2, c.width = 32, c.heads = 4, c.kv_heads = 2, c.ffn_width = 40, c.context = 64;
  c.attention.spec.routing = {.clusters = 4, .keep = 6};
  return c;
}

at::Tensor tokens(int64_t length = 60) {
  return (at::arange(length) * 7).remainder(kVocab).view({1, length});
}

const at::Tensor& value(const Transformer& model, const std::string& rest) {
  return model.parameters().find("model.layers.1.self_attn.routing." + rest)->value;
}

TEST(RoutingModel, DecodingEqualsTheForwardPass) {
  ModelConfig blocks = routed();
  blocks.attention.routing = {}, blocks.attention.spec.routing = {};
  blocks.attention.spec.blocks = {
      .size = 8, .pairs = {0, 0, 1, 0, 1, 1, 2, 2, 3, 0, 3, 3, 4, 2, 4, 4, 5, 5, 6, 1, 6, 6, 7, 7}};
  for (const ModelConfig& config : {routed(), blocks}) {
    Transformer model(config.resolved(kVocab), 3);
    const at::NoGradGuard no_grad;
    ForwardInfo info;
    const at::Tensor whole = model.logits(model.hidden({.tokens_bt = tokens()}, &info));
    EXPECT_EQ(info.path.text(), "grouped lists");
    DecodeState state = model.make_decode_state(1, 60);
    std::vector<at::Tensor> parts{model.decode(tokens().narrow(1, 0, 40), state, true)};
    for (int64_t n = 40; n < 60; ++n)
      parts.push_back(model.decode(tokens().narrow(1, n, 1), state, true));
    EXPECT_LT(relative_error(at::cat(parts, 1), whole), 1e-4);
  }
}

TEST(RoutingModel, ForwardIsPureAndObserveMovesTheCentroidsAlone) {
  Transformer model(routed().resolved(kVocab), 3);
  const at::Tensor before = value(model, "centroids").clone();
  ForwardInfo info;
  model.hidden({.tokens_bt = tokens(), .training = true}, &info);
  EXPECT_TRUE(value(model, "centroids").equal(before));
  const at::Tensor weight = model.parameters().find("model.layers.1.mlp.up_proj.weight")->value;
  const at::Tensor kept = weight.clone();
  model.observe({&info, 1}, 0.99);
  EXPECT_FALSE(value(model, "centroids").equal(before));
  EXPECT_TRUE(weight.equal(kept));
  // 60 queries and as many keys a head, after clusters of one token each.
  EXPECT_NEAR(value(model, "sizes").sum().item<double>(), 4 * (0.999 * 4 + 0.001 * 120), 1e-3);
}

TEST(RoutingModel, ActsInTheNamedLayersAndCostsNoParameter) {
  ModelConfig c = routed(), plain = routed();
  plain.attention.routing = {}, plain.attention.spec.routing = {};
  EXPECT_EQ(parameter_count(c.resolved(kVocab)), parameter_count(plain.resolved(kVocab)));
  c.attention.routing.layers = {1};
  c = c.resolved(kVocab);
  EXPECT_FALSE(c.layer_attention(0).routing.active());
  EXPECT_TRUE(c.layer_attention(1).routing.active());
}

TEST(RoutingModel, RefusesImpossibleSettingsByKey) {
  ModelConfig c = routed();
  c.attention.routing.layers = {2};
  EXPECT_ERROR(ConfigError, c.resolved(kVocab), "routing.layers", "2");
  c = routed();
  c.attention.routing.decay = 1.0;
  EXPECT_ERROR(ConfigError, c.resolved(kVocab), "routing.decay", "1");
  c = routed();
  c.attention.spec.routing.clusters = 0;
  EXPECT_ERROR(ConfigError, c.resolved(kVocab), "routing", "clusters");
  c = routed();
  c.attention.spec.mask.window = 8;
  EXPECT_ERROR(UnsupportedError, c.resolved(kVocab), "routing", "mask.window");
}

}  // namespace
}  // namespace fovea::routing_test
