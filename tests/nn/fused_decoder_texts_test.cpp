// Texts of unequal lengths decode together, in one state or in states of their own: each has the
// numbers that it has alone.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/nn/transformer.h"
#include "tests/support/decoder_settings.h"
#include "tests/support/expect_error.h"

namespace fovea::fused_decoder_texts_test {
namespace {

using namespace decoder_settings;

/// Two texts of a batch and one alone, at lengths 9, 9 and 4; each with one to follow.
struct Texts {
  at::Tensor ids = tokens(3);
  std::vector<int64_t> lengths{9, 9, 4};

  DecodeState alone(const Transformer& model, int64_t b) const {
    DecodeState state = model.make_decode_state(1, kTokens);
    model.decode(ids.narrow(0, b, 1).narrow(1, 0, lengths[b]), state);
    return state;
  }
  /// The n-th token behind each prompt, [b, 1].
  at::Tensor next(int64_t n) const {
    std::vector<at::Tensor> all;
    for (int64_t b = 0; b < 3; ++b) all.push_back(one(b, n));
    return at::cat(all);
  }
  at::Tensor one(int64_t b, int64_t n) const {
    return ids.narrow(0, b, 1).narrow(1, lengths[b] + n, 1);
  }
};

/// Some layers' attention runs by operations of torch, whose bits depend on the sequences of one
/// state.
bool by_operations(const DecodeState& state) {
  return state.path.reason.text().find("by single operations") != std::string::npos;
}

void expect_each_alone(const Transformer& model, bool exact, PathName path) {
  const Texts texts;
  std::vector<DecodeState> alone;
  for (int64_t b = 0; b < 3; ++b) alone.push_back(texts.alone(model, b));
  DecodeState together =
      DecodeState::join(std::vector<const DecodeState*>{&alone[0], &alone[1], &alone[2]});
  EXPECT_EQ(together.lengths(), texts.lengths);
  std::vector<at::Tensor> expected(3);
  const auto step = [&](int64_t n) {
    const at::Tensor z = model.decode(texts.next(n), together);
    EXPECT_EQ(together.path.name, path) << together.path.reason.text();
    for (int64_t b = 0; b < 3; ++b) {
      expected[b] = model.decode(texts.one(b, n), alone[b])[0];
      if (exact && !by_operations(together)) {
        EXPECT_TRUE(at::equal(z[b], expected[b])) << "sequence " << b << ", token " << n;
      } else {
        EXPECT_LE(difference(z[b], expected[b]), 1e-5) << "sequence " << b << ", token " << n;
      }
    }
  };
  for (int64_t n = 0; n < 4; ++n) step(n);
  // Convolutions keep few queries to go back to.
  const auto back = model.config().attention.spec.multi_token.earlier_queries() > 0
                        ? std::vector<int64_t>{12, 13, 7}
                        : std::vector<int64_t>{11, 10, 5};
  if (model.config().attention.spec.performer.active()) {  // a sum forgets no single token
    EXPECT_THROW(together.truncate(back), UnsupportedError);
    return;
  }
  together.truncate(back);
  EXPECT_EQ(together.lengths(), back);
  DecodeState some = together.fork().select(std::vector<int64_t>{2, 0});
  EXPECT_EQ(some.lengths(), (std::vector<int64_t>{back[2], back[0]}));
  for (int64_t b = 0; b < 3; ++b) alone[b].truncate(back[b]);
  const auto next = [&](int64_t b) { return texts.one(b, back[b] - texts.lengths[b]); };
  const at::Tensor z = model.decode(at::cat({next(2), next(0)}), some);
  EXPECT_LE(difference(z[0], model.decode(next(2), alone[2])[0]), 1e-5);
  EXPECT_LE(difference(z[1], model.decode(next(0), alone[0])[0]), 1e-5);
}

TEST(FusedDecoderTexts, SequencesOfUnequalLengthsHaveTheBitsOfEachAlone) {
  for (const auto& [name, config] : options()) {
    SCOPED_TRACE(name);
    expect_each_alone(make(config, at::kFloat), true, PathName::fused_decoder);
  }
}

// A pair in one state and a text in another, of other capacity.
TEST(FusedDecoderTexts, TextsWithStatesOfTheirOwnHaveTheBitsOfEachAlone) {
  const Texts texts;
  for (const auto& [name, config] : options()) {
    SCOPED_TRACE(name);
    const Transformer model = make(config, at::kFloat);
    std::vector<DecodeState> alone;
    for (int64_t b = 0; b < 3; ++b) alone.push_back(texts.alone(model, b));
    DecodeState pair = DecodeState::join(std::vector<const DecodeState*>{&alone[0], &alone[1]});
    DecodeState longer = model.make_decode_state(1, kTokens + 9);
    model.decode(texts.ids.narrow(0, 2, 1).narrow(1, 0, texts.lengths[2]), longer);
    const std::vector<DecodeState*> states{&pair, &longer};
    for (int64_t n = 0; n < 3; ++n) {
      const at::Tensor z = model.decode_together(texts.next(n), states);
      EXPECT_EQ(longer.path.name, PathName::fused_decoder);
      EXPECT_EQ(longer.path.plan.text(), pair.path.plan.text());
      for (int64_t b = 0; b < 3; ++b) {
        const at::Tensor expected = model.decode(texts.one(b, n), alone[b])[0];
        if (b < 2 && by_operations(pair)) {
          EXPECT_LE(difference(z[b], expected), 1e-5) << "sequence " << b << ", token " << n;
        } else {
          EXPECT_TRUE(at::equal(z[b], expected)) << "sequence " << b << ", token " << n;
        }
      }
    }
    // One leaves; the other goes on alone.
    EXPECT_TRUE(
        at::equal(model.decode(texts.one(2, 3), longer), model.decode(texts.one(2, 3), alone[2])));
    EXPECT_EQ(pair.lengths(), (std::vector<int64_t>{12, 12}));
  }
}

TEST(FusedDecoderTexts, RefusesTextsThatItCannotTakeTogether) {
  ModelConfig c = small();
  Transformer model = make(c, at::kFloat);
  DecodeState a = model.make_decode_state(1, kTokens), b = model.make_decode_state(1, kTokens);
  const std::vector<DecodeState*> both{&a, &b};
  const at::Tensor two = tokens(2);
  EXPECT_ERROR(ShapeError, model.decode_together(two.narrow(0, 0, 1).narrow(1, 0, 1), both),
               "2 sequences; got 1");
  EXPECT_ERROR(UnsupportedError, model.decode_together(two.narrow(1, 0, 2), both),
               "one token of each sequence");
  model.compute().fused_decoder = false;
  EXPECT_ERROR(UnsupportedError, model.decode_together(two.narrow(1, 0, 1), both), "not wanted",
               "one by one");
  model.compute().fused_decoder = true;
  c.rope.theta = 500.0;
  DecodeState other = make(c, at::kFloat).make_decode_state(1, kTokens);
  const std::vector<DecodeState*> mixed{&a, &other};
  EXPECT_ERROR(ConfigError, model.decode_together(two.narrow(1, 0, 1), mixed), "one RoPE table");
  EXPECT_EQ(a.length(), 0);
}

TEST(DecodeByLayers, SequencesOfUnequalLengthsEqualEachAlone) {
  std::vector<Named> all = options();
  const auto add = [&](const char* name, auto set) {
    ModelConfig c = small();
    set(c);
    all.emplace_back(name, c);
  };
  add("routing", [](ModelConfig& c) { c.attention.spec.routing.clusters = 3; });
  add("performer", [](ModelConfig& c) { c.attention.spec.performer.features = 12; });
  add("interleaved", [](ModelConfig& c) { c.rope.layout = RopeLayout::interleaved; });
  for (const auto& [name, config] : all) {
    SCOPED_TRACE(name);
    Transformer model = make(config, at::kFloat);
    model.compute().fused_decoder = false;
    expect_each_alone(model, false, PathName::by_layers);
  }
}

TEST(FusedDecoderTexts, JoinsStatesOfOneModelAndOneRotationAlone) {
  ModelConfig c = small();
  const Transformer model = make(c, at::kFloat);
  c.rope.theta = 500.0;
  const Transformer other = make(c, at::kFloat);
  c.layers = 2;
  const Transformer shorter = make(c, at::kFloat);
  const DecodeState a = model.make_decode_state(1, 8), b = other.make_decode_state(1, 8),
                    d = shorter.make_decode_state(1, 8);
  const auto join = [&](const DecodeState& with) {
    return DecodeState::join(std::vector<const DecodeState*>{&a, &with});
  };
  EXPECT_THROW(join(b), ConfigError);
  EXPECT_THROW(join(d), ConfigError);
  EXPECT_EQ(join(model.make_decode_state(1, 20)).capacity(), 20);
}

}  // namespace
}  // namespace fovea::fused_decoder_texts_test
