// The fused decoder, one token through all layers: the same numbers as layer by layer, for every
// option it takes; the same bits for any number of threads and sequences; a reason where it does
// not go. fused_decoder_texts_test.cpp: texts of unequal lengths.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "fovea/nn/transformer.h"
#include "tests/support/decoder_settings.h"

namespace fovea::fused_decoder_test {
namespace {

using namespace decoder_settings;

TEST(FusedDecoder, GivesTheLogitsOfTheLayersOneByOneInFloat32) {
  const at::Tensor ids = tokens(1);
  for (const auto& [name, config] : options()) {
    Transformer model = make(config, at::kFloat);
    const at::Tensor fast = decoded(model, ids, PathName::fused_decoder);
    model.compute().fused_decoder = false;
    const at::Tensor slow = decoded(model, ids, PathName::by_layers);
    EXPECT_LE(difference(fast, slow), 1e-5 * slow.abs().max().item<double>()) << name;
  }
}

// bfloat16: at most twice the error of the layers one by one, with matrices in either format.
TEST(FusedDecoder, IsAsExactAsTheLayersOneByOneInBfloat16) {
  const at::Tensor ids = tokens(1);
  for (const auto& [name, config] : options()) {
    SCOPED_TRACE(name);
    Transformer model = make(config, at::kDouble);
    const at::Tensor truth = decoded(model, ids, PathName::by_layers);
    model.compute().dtype = at::kBFloat16;
    for (const bool held : {false, true}) {
      if (held) model.hold_matrices_in(at::kBFloat16);
      model.compute().fused_decoder = false;
      const double error = difference(decoded(model, ids, PathName::by_layers), truth);
      model.compute().fused_decoder = true;
      EXPECT_LE(difference(decoded(model, ids, PathName::fused_decoder), truth), 2 * error)
          << name << (held ? ", held" : "");
    }
  }
}

// What is not a number in one text changes no bit of another in the batch.
TEST(FusedDecoder, NonFiniteNumbersStayInTheirSequence) {
  for (auto [name, config] : options()) {
    SCOPED_TRACE(name);
    config.tied = false;  // else every text has the broken row among its logits
    Transformer model = make(config, at::kFloat);
    constexpr int64_t kBroken = 7;
    at::Tensor ids = tokens(3);
    ids.masked_fill_(ids == kBroken, kBroken + 1);
    const at::Tensor whole = decoded(model, ids, PathName::fused_decoder);
    {
      const at::NoGradGuard no_grad;
      model.parameters().find("model.embed_tokens.weight")->value[kBroken].fill_(NAN);
    }
    ids[1][2] = kBroken;
    const at::Tensor broken = decoded(model, ids, PathName::fused_decoder);
    EXPECT_TRUE(at::isnan(broken[1].narrow(0, 2, 1)).all().item<bool>());
    EXPECT_TRUE(at::equal(broken[1].narrow(0, 0, 2), whole[1].narrow(0, 0, 2)));
    for (const int64_t other : {0, 2}) EXPECT_TRUE(at::equal(broken[other], whole[other]));
  }
}

// Large enough for several threads.
TEST(FusedDecoder, HasTheSameBitsForAnyNumberOfThreadsAndSequences) {
  ModelConfig config{.layers = 2, .width = 128, .heads = 6, .kv_heads = 3, .head_dim = 32};
  config.ffn_width = 392;
  config.context = 32;
  config.attention.spec.temperature.kind = TemperatureSpec::Kind::learned;
  const at::Tensor ids = tokens(3);
  const int threads = at::get_num_threads();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Transformer model = make(config, dtype);
    at::set_num_threads(1);
    const at::Tensor one = decoded(model, ids, PathName::fused_decoder);
    for (const int n : {2, 3}) {
      at::set_num_threads(n);
      EXPECT_TRUE(at::equal(decoded(model, ids, PathName::fused_decoder), one)) << n << " threads";
    }
    for (int64_t b = 0; b < 3; ++b)
      EXPECT_TRUE(
          at::equal(decoded(model, ids.narrow(0, b, 1), PathName::fused_decoder)[0], one[b]))
          << b;
    at::set_num_threads(threads);
  }
}

TEST(FusedDecoder, ContinuesWhatAPromptLeftInTheCacheAndForgetsWithIt) {
  const at::Tensor ids = tokens(2);
  for (const auto& [name, config] : options()) {
    const Transformer model = make(config, at::kFloat);
    const at::Tensor all = decoded(model, ids, PathName::fused_decoder);
    DecodeState state = model.make_decode_state(2, kTokens);
    model.decode(ids.narrow(1, 0, 11), state);
    EXPECT_EQ(state.path.name, PathName::by_layers);
    for (int64_t i = 11; i < kTokens; ++i) {
      const at::Tensor z = model.decode(ids.narrow(1, i, 1), state).to(at::kDouble);
      EXPECT_LE(difference(z, all.select(1, i)), 1e-5 * all.abs().max().item<double>()) << name;
      if (i != 12) continue;
      state.truncate(12);  // once more
      EXPECT_TRUE(at::equal(model.decode(ids.narrow(1, i, 1), state).to(at::kDouble), z)) << name;
    }
  }
}

// What it says of the layers whose attention the walk computes.
std::string reason_of(const ModelConfig& config, const std::string& name) {
  const Transformer model = make(config, at::kFloat);
  DecodeState state = model.make_decode_state(1, kTokens);
  model.decode(tokens(1).narrow(1, 0, 1), state);
  EXPECT_EQ(state.path.name, PathName::fused_decoder) << name;
  return state.path.reason.text();
}

TEST(FusedDecoder, SaysWhichLayersAttendByTheWalk) {
  std::vector<std::string> kernels;
  for (const auto& [name, config] : by_kernels()) {
    EXPECT_THAT(reason_of(config, name), ::testing::Not(::testing::HasSubstr("operations")))
        << name;
    kernels.push_back(name);
  }
  for (const auto& [name, config] : walked()) {
    if (config.lora.active() || std::ranges::count(kernels, name) > 0) continue;
    EXPECT_THAT(reason_of(config, name), ::testing::HasSubstr("3 of 3")) << name;
  }
}

// One layer shifts the keys of hard Focus, which no kernel has: only that layer is named.
TEST(FusedDecoder, CountsOnlyLayersWithoutKernels) {
  ModelConfig c = small();
  c.attention.spec.focus = hard_focus();
  c.attention.spec.kv_shift.keys = true;
  c.attention.focus.layers = {1};
  EXPECT_THAT(reason_of(c, "one layer"), ::testing::HasSubstr("1 of 3"));
}

TEST(FusedDecoder, TheStateHasTheBytesThatWereForetold) {
  for (const auto& [name, config] : options()) {
    const Transformer model = make(config, at::kFloat);
    const DecodeState state = model.make_decode_state(2, kTokens);
    EXPECT_GE(model.decode_state_bytes(2, kTokens), state.bytes()) << name;
    EXPECT_LE(model.decode_state_bytes(2, kTokens), state.bytes() + 64 * 8 * 2) << name;
  }
}

// The compiled form stays from text to text, and goes where it would be another.
TEST(FusedDecoder, IsCompiledOnceForAModel) {
  Transformer model = make(small(), at::kFloat);
  const at::Tensor ids = tokens(1);
  DecodeState state = model.make_decode_state(1, kTokens);
  const auto step = [&] {
    const int64_t n = state.length();
    const at::Tensor z = model.decode(ids.narrow(1, n, 1), state);
    DecodeState fresh = model.make_decode_state(1, kTokens);
    for (int64_t i = 0; i <= n; ++i) {
      const at::Tensor expected = model.decode(ids.narrow(1, i, 1), fresh);
      if (i == n) {
        EXPECT_TRUE(at::equal(z, expected)) << n;
      }
    }
    return model.decoder_compilations();
  };
  EXPECT_EQ(step(), 1);
  EXPECT_EQ(step(), 1);
  state.truncate(1);
  EXPECT_EQ(step(), 1);
  const auto change = [&](auto set) {
    set();
    state.truncate(0);
    return step();
  };
  {
    const at::NoGradGuard no_grad;  // numbers in place: the same compiled form reads them
    EXPECT_EQ(change([&] {
                for (Parameter& p : model.parameters().all()) p.value.mul_(1.1);
              }),
              1);
  }
  EXPECT_EQ(change([&] { model.hold_matrices_in(at::kFloat); }), 2);
  const auto pass = [&](bool training) {
    model.hidden({.tokens_bt = ids, .training = training});
    state.truncate(0);
    return step();
  };
  EXPECT_EQ(pass(false), 2);
  EXPECT_EQ(pass(true), 3);  // its optimizer may write where no version tells
}

// Norms with a factor are copied once for all texts, and again when their numbers change.
TEST(FusedDecoder, ReadsTheNumbersThatScaledNormsHaveNow) {
  ModelConfig config = small();
  config.norm_depth_scale = HeadOutputSpec::DepthScale::lambda;
  Transformer model = make(config, at::kFloat);
  const at::Tensor ids = tokens(1);
  for (const int64_t compilations : {1, 2}) {
    const at::Tensor fast = decoded(model, ids, PathName::fused_decoder);
    EXPECT_EQ(model.decoder_compilations(), compilations);
    const at::Tensor slow = model.logits(model.hidden({.tokens_bt = ids})).detach().to(at::kDouble);
    EXPECT_LE(difference(fast, slow), 1e-5 * slow.abs().max().item<double>());
    const at::NoGradGuard no_grad;
    model.parameters().find("model.layers.1.input_layernorm.weight")->value.mul_(2.0);
  }
}

// Adapters are merged once for all texts, and again when their numbers change.
TEST(FusedDecoder, ReadsTheNumbersThatAdaptersHaveNow) {
  ModelConfig config = small();
  config.lora = {.rank = 2, .alpha = 4.0, .targets = {"all-linear"}};
  Transformer model = make(config, at::kFloat);
  const at::Tensor ids = tokens(1);
  for (const int64_t compilations : {1, 2, 3}) {
    const at::Tensor fast = decoded(model, ids, PathName::fused_decoder);
    EXPECT_TRUE(at::equal(decoded(model, ids, PathName::fused_decoder), fast));
    EXPECT_EQ(model.decoder_compilations(), compilations);
    const at::Tensor slow = model.logits(model.hidden({.tokens_bt = ids})).detach().to(at::kDouble);
    EXPECT_LE(difference(fast, slow), 1e-5 * slow.abs().max().item<double>());
    const at::NoGradGuard no_grad;
    for (Parameter& p : model.parameters().all())
      if (p.origin == Parameter::Origin::added) p.value.mul_(1.5);
  }
}

// From 4096 keys on tokens read keys sorted by their groups (spec 11.5).
TEST(FusedDecoder, ReadsSortedKeysOfALongText) {
  constexpr int64_t kPrompt = 4200, kSteps = 60, kScans = 32;
  ModelConfig config = small();
  config.context = kPrompt + kSteps;
  config.attention.spec.focus = hard_focus();
  config.attention.spec.focus.window = 70;
  config.attention.spec.focus.sinks = 2;
  const at::Tensor ids =
      at::randint(0, kVocab, {2, kPrompt + kSteps}, at::detail::createCPUGenerator(5),
                  at::TensorOptions(at::kLong));
  Transformer model = make(config, at::kFloat);
  DecodeState state = model.make_decode_state(2, kPrompt + kSteps);
  model.decode(ids.narrow(1, 0, kPrompt), state);
  const int64_t plain_bytes = state.bytes();
  DecodeState by_layers = state.fork();
  const auto step = [&](DecodeState& of, int64_t i, bool fused) {
    model.compute().fused_decoder = fused;
    const at::Tensor z = model.decode(ids.narrow(1, kPrompt + i, 1), of);
    EXPECT_EQ(of.path.name, fused ? PathName::fused_decoder : PathName::by_layers)
        << of.path.reason.text();
    const std::string plan =
        i < kScans + config.layers - 1 ? "scan" : "sorted";  // of the last layer
    EXPECT_EQ(of.path.plan.text(), fused ? plan : "") << i;
    return z.to(at::kDouble);
  };
  std::vector<at::Tensor> expected;
  for (int64_t i = 0; i < kSteps; ++i) {
    expected.push_back(step(by_layers, i, false));
    EXPECT_LE(difference(step(state, i, true), expected.back()), 1e-5) << i;
  }
  EXPECT_GT(state.bytes(), plain_bytes + plain_bytes / 2) << "no sorted copy";
  // Back, on in another way, and a copy that goes on by itself.
  state.truncate(kPrompt + kSteps - 20);
  for (int64_t i = kSteps - 20; i < kSteps; ++i) {
    EXPECT_LE(difference(step(state, i, i % 3 != 0), expected[i]), 1e-5) << i;
    if (i != kSteps - 10) continue;
    DecodeState copy = state.fork();
    for (int64_t n = i + 1; n < kSteps; ++n)
      EXPECT_LE(difference(step(copy, n, true), expected[n]), 1e-5) << n;
  }
}

TEST(FusedDecoder, SaysWhyNot) {
  const auto reason = [](const ModelConfig& config, int64_t b = 1,
                         at::ScalarType dtype = at::kFloat) {
    const Transformer model = make(config, dtype);
    DecodeState state = model.make_decode_state(b, kTokens);
    model.decode(tokens(b).narrow(1, 0, 1), state);
    EXPECT_EQ(state.path.name, PathName::by_layers);
    return state.path.reason.text();
  };
  ModelConfig c = small();
  EXPECT_THAT(reason(c, 1, at::kDouble), ::testing::HasSubstr("Double"));
  c.head_dim = 6;
  EXPECT_THAT(reason(c), ::testing::HasSubstr("8"));
  c = small();
  c.attention.spec.routing.clusters = 3;
  EXPECT_THAT(reason(c), ::testing::HasSubstr("routing"));
  c = small();
  c.attention.spec.streaming = {.recent = 4, .start = 65};
  EXPECT_THAT(reason(c), ::testing::HasSubstr("more than 64 first keys"));
  c = small();
  c.rope.layout = RopeLayout::interleaved;
  EXPECT_THAT(reason(c), ::testing::HasSubstr("interleaved"));
}

}  // namespace
}  // namespace fovea::fused_decoder_test
