// Longformer and StreamingLLM in the decoder: projections that start as copies, decoding, positions
// of the cache under every kind of rotation, texts beyond the trained length, keys (spec 4.1, 4.6).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "fovea/nn/transformer.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"

namespace fovea::windowed_models_test {
namespace {

using namespace fovea::testing;

constexpr int64_t kVocab = 50;

ModelConfig base() {
  ModelConfig c;
  c.layers = 2, c.width = 32, c.heads = 4, c.kv_heads = 2, c.ffn_width = 40, c.context = 64;
  return c;
}

ModelConfig with_projections() {
  ModelConfig c = base();
  c.biases.qkv = true;
  c.attention.spec.longformer = {
      .window = 5, .dilation = {1, 1, 2, 2}, .globals = 2, .projections = true};
  return c;
}

ModelConfig streaming() {
  ModelConfig c = base();
  c.attention.spec.streaming = {.recent = 9, .start = 3};
  return c;
}

at::Tensor tokens(int64_t length = 60) {
  return (at::arange(length) * 7).remainder(kVocab).view({1, length});
}

at::Tensor whole(const Transformer& model, int64_t length = 60) {
  return model.logits(model.hidden({.tokens_bt = tokens(length)}));
}

at::Tensor decoded(const Transformer& model, int64_t length, int64_t prompt) {
  DecodeState state = model.make_decode_state(1, length);
  std::vector<at::Tensor> parts{model.decode(tokens(length).narrow(1, 0, prompt), state, true)};
  for (int64_t n = prompt; n < length; ++n)
    parts.push_back(model.decode(tokens(length).narrow(1, n, 1), state, true));
  return at::cat(parts, 1);
}

TEST(LongformerModel, DecodingEqualsTheForwardPass) {
  ModelConfig plain = base(), growing = base();
  plain.attention.spec.longformer = {.window = 6, .globals = 2};
  growing.attention.spec.longformer = {.window = 6, .dilation = {2}, .global_positions = {30}};
  growing.attention.longformer.windows = {3, 7};
  for (const ModelConfig& config : {plain, growing, with_projections()}) {
    Transformer model(config.resolved(kVocab), 3);
    const at::NoGradGuard no_grad;
    EXPECT_LT(relative_error(decoded(model, 60, 20), whole(model)), 1e-4);
    model.compute().dtype = at::kDouble;
    EXPECT_LT(relative_error(decoded(model, 60, 1), whole(model)), 1e-10);
  }
}

// A window without globals is one to the fused decoder.
TEST(LongformerModel, AWindowAloneRunsInTheFusedDecoder) {
  ModelConfig c = base();
  c.attention.spec.longformer = {.window = 6};
  const Transformer model(c.resolved(kVocab), 3);
  EXPECT_EQ(model.why_no_fused_decoder(), std::nullopt);
}

TEST(LongformerModel, ProjectionsStartAsCopiesAndChangeNothing) {
  const Transformer model(with_projections().resolved(kVocab), 3);
  ModelConfig without = with_projections();
  without.attention.spec.longformer.projections = false;
  const Transformer plain(without.resolved(kVocab), 3);
  const at::NoGradGuard no_grad;
  EXPECT_LT(relative_error(whole(model), whole(plain)), 1e-5);
  int64_t added = 0;
  for (const Parameter& p : model.parameters().all()) {
    if (p.origin != Parameter::Origin::added) continue;
    std::string name = p.name;
    name.erase(name.find("global_"), 7);
    EXPECT_TRUE(p.value.equal(model.parameters().find(name)->value)) << p.name;
    EXPECT_EQ(p.mechanism, "longformer");
    added += p.value.numel();
  }
  EXPECT_EQ(added, 2 * (32 * 64 + 64));
  EXPECT_EQ(added, model.parameters().count() - plain.parameters().count());
}

// And learn of their own: only from global rows.
TEST(LongformerModel, ProjectionsLearn) {
  Transformer model(with_projections().resolved(kVocab), 3);
  model.loss({.tokens_bt = tokens(), .training = true}, tokens()).loss.backward();
  for (const Parameter& p : model.parameters().all()) {
    // A bias of all keys of a row shifts its logits alike.
    if (p.origin != Parameter::Origin::added || p.name.ends_with("k_proj.bias")) continue;
    ASSERT_TRUE(p.value.grad().defined()) << p.name;
    EXPECT_GT(p.value.grad().abs().max().item<double>(), 0.0) << p.name;
  }
}

TEST(LongformerModel, ActsInTheNamedLayersWithTheirWindows) {
  ModelConfig c = base();
  c.attention.spec.longformer = {.window = 6};
  c.attention.longformer.layers = {1};
  c.attention.longformer.windows = {3, 7};
  c = c.resolved(kVocab);
  EXPECT_FALSE(c.layer_attention(0).longformer.active());
  EXPECT_EQ(c.layer_attention(1).longformer.window, 7);
}

TEST(LongformerModel, RefusesImpossibleSettingsByKey) {
  const auto refuse = [](const std::function<void(AttentionSettings&)>& change, const char* key,
                         const char* value) {
    ModelConfig c = base();
    c.attention.spec.longformer = {.window = 6};
    change(c.attention);
    EXPECT_ERROR(ConfigError, c.resolved(kVocab), key, value);
  };
  refuse([](auto& a) { a.longformer.layers = {2}; }, "longformer.layers", "2");
  refuse([](auto& a) { a.longformer.windows = {4}; }, "longformer.windows", "1");
  refuse([](auto& a) { a.longformer.windows = {4, 0}; }, "longformer.windows", "0");
  refuse([](auto& a) { a.spec.longformer.global_positions = {64}; }, "longformer.global_positions",
         "64");
  refuse([](auto& a) { a.spec.longformer.dilation = {1, 2, 3}; }, "longformer.dilation", "3");
  refuse(
      [](auto& a) {
        a.spec.longformer.window = 0;
        a.longformer.layers = {1};
      },
      "longformer", "window");
}

// Every way in which queries get their positions (spec 6.1, 6.2, 6.4, 7.3).
std::vector<ModelConfig> streaming_models() {
  std::vector<ModelConfig> all;
  const auto add = [&](const std::function<void(ModelConfig&)>& change) {
    all.push_back(streaming());
    change(all.back());
  };
  add([](ModelConfig&) {});
  add([](ModelConfig& c) { c.rope.layout = RopeLayout::interleaved, c.rope.rotary_dim = 4; });
  add([](ModelConfig& c) { c.qk_norm = QkNorm::head_rms; });
  add([](ModelConfig& c) { c.positions = Positions::none; });
  add([](ModelConfig& c) {
    c.positions = Positions::none, c.attention.spec.bias.kind = BiasSpec::Kind::alibi;
  });
  add([](ModelConfig& c) { c.attention.spec.streaming.start = 0; });
  return all;
}

TEST(StreamingModel, DecodingEqualsTheForwardPassBeyondTheContext) {
  for (const ModelConfig& config : streaming_models()) {
    Transformer model(config.resolved(kVocab), 3);
    const at::NoGradGuard no_grad;
    EXPECT_LT(relative_error(decoded(model, 200, 20), whole(model, 200)), 1e-4);
    model.compute().dtype = at::kDouble;
    EXPECT_LT(relative_error(decoded(model, 90, 1), whole(model, 90)), 1e-10);
  }
}

// Positions count inside the cache: a text in which a token repeats has states that no longer
// change, wherever it stands. With true distances to the start they would.
TEST(StreamingModel, AStateDependsOnTheCacheAloneNotOnThePlaceInTheText) {
  Transformer model(streaming().resolved(kVocab), 3);
  const at::NoGradGuard no_grad;
  const at::Tensor same = at::full({1, 400}, 7, at::kLong);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    model.compute().dtype = dtype;
    const at::Tensor z = model.logits(model.hidden({.tokens_bt = same}));
    EXPECT_LT(relative_error(z.select(1, 399), z.select(1, 60)),
              dtype == at::kDouble ? 1e-12 : 1e-5);
  }
}

TEST(StreamingModel, DocumentsInARowEqualEachAlone) {
  Transformer model(streaming().resolved(kVocab), 3);
  const at::NoGradGuard no_grad;
  const at::Tensor documents = at::arange(60).ge(25).to(at::kLong).view({1, 60});
  const at::Tensor positions = at::arange(60).view({1, 60}) - 25 * documents;
  const at::Tensor packed =
      model.hidden({.tokens_bt = tokens(), .documents_bt = documents, .positions_bt = positions});
  const at::Tensor alone = model.hidden({.tokens_bt = tokens().narrow(1, 25, 35)});
  EXPECT_LT(relative_error(packed.narrow(1, 25, 35), alone), 1e-5);
}

TEST(StreamingModel, LearnsThroughBothQueries) {
  Transformer model(streaming().resolved(kVocab), 3);
  model.loss({.tokens_bt = tokens(), .training = true}, tokens()).loss.backward();
  for (const Parameter& p : model.parameters().all())
    EXPECT_GT(p.value.grad().abs().max().item<double>(), 0.0) << p.name;
}

TEST(StreamingModel, RefusesPositionsThatCannotBeCountedAnew) {
  for (const Positions positions : {Positions::learned, Positions::sinusoidal}) {
    ModelConfig c = streaming();
    c.positions = positions;
    EXPECT_ERROR(UnsupportedError, c.resolved(kVocab), "streaming",
                 std::string(enum_name(positions)));
  }
}

}  // namespace
}  // namespace fovea::windowed_models_test
