// Texts of unequal lengths decode together, in one state or in states of their own: each has the
// numbers that it has alone.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <random>
#include <string>
#include <utility>
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
  EXPECT_EQ(a.length(), 0);
}

/// A text of a serving engine: it joins with its first token and leaves with its last.
struct Visitor {
  at::Tensor ids_1t;
  DecodeState state;
  std::vector<at::Tensor> logits;

  Visitor(const Transformer& model, int64_t n)
      : ids_1t(at::randint(0, kVocab, {1, 3 + n % 9},
                           at::detail::createCPUGenerator(static_cast<uint64_t>(n)),
                           at::TensorOptions(at::kLong))),
        state(model.make_decode_state(1, ids_1t.size(1) + n % 3)) {}
  bool done() const { return std::ssize(logits) == ids_1t.size(1); }
  at::Tensor next() const { return ids_1t.narrow(1, std::ssize(logits), 1); }
};

// More texts than one product takes, each with the logits that it has alone; one compilation.
TEST(FusedDecoderTexts, FortyTextsJoinAndLeaveInRandomOrder) {
  constexpr int64_t kTexts = 40;
  std::vector<Named> all = walked();
  all.emplace_back("plain", small());
  all.emplace_back("hard Focus", small());
  all.back().second.attention.spec.focus = hard_focus();
  for (const auto& [name, config] : all) {
    SCOPED_TRACE(name);
    const Transformer model = make(config, at::kFloat);
    std::vector<std::vector<at::Tensor>> alone;
    for (int64_t n = 0; n < kTexts; ++n) {
      Visitor text(model, n);
      while (!text.done()) text.logits.push_back(model.decode(text.next(), text.state)[0]);
      alone.push_back(text.logits);
    }
    std::mt19937 random(7);
    std::deque<std::pair<int64_t, Visitor>> present;
    std::vector<int64_t> waiting(kTexts);
    std::iota(waiting.begin(), waiting.end(), 0);
    std::ranges::shuffle(waiting, random);
    size_t most = 0;
    while (!waiting.empty() || !present.empty()) {
      for (size_t joining = present.empty() ? 1 : random() % 12; joining > 0 && !waiting.empty();
           --joining) {
        const int64_t n = waiting.back();
        waiting.pop_back();
        present.emplace(present.begin() + static_cast<int64_t>(random() % (present.size() + 1)), n,
                        Visitor(model, n));
      }
      most = std::max(most, present.size());
      std::vector<DecodeState*> states;
      std::vector<at::Tensor> next;
      for (auto& [n, text] : present) {
        states.push_back(&text.state);
        next.push_back(text.next());
      }
      const at::Tensor z = model.decode_together(at::cat(next), states);
      for (size_t b = 0; b < present.size(); ++b)
        present[b].second.logits.push_back(z[static_cast<int64_t>(b)]);
      for (auto& [n, text] : present) {
        if (!text.done()) continue;
        for (size_t i = 0; i < text.logits.size(); ++i)
          EXPECT_TRUE(at::equal(text.logits[i], alone[n][i])) << "text " << n << ", token " << i;
      }
      std::erase_if(present, [](const auto& of) { return of.second.done(); });
    }
    EXPECT_GT(most, 16);
    EXPECT_EQ(model.decoder_compilations(), 1);
  }
}

// Copies share full pages of keys; each goes on as a text that was read alone.
TEST(FusedDecoderTexts, ForksOfALongTextHaveTheBitsOfTextsReadAlone) {
  constexpr int64_t kPrompt = 300, kSteps = 9;
  std::vector<Named> all = by_kernels();
  for (const auto& [name, set] : std::vector<std::pair<std::string, void (*)(AttentionSpec&)>>{
           {"plain", [](AttentionSpec&) {}},
           {"window", [](AttentionSpec& s) { s.mask.window = 150; }},
           {"learned temperature",
            [](AttentionSpec& s) { s.temperature.kind = TemperatureSpec::Kind::learned; }},
           {"hard Focus", [](AttentionSpec& s) { s.focus = hard_focus(); }},
           {"SparQ", [](AttentionSpec& s) { s.sparq = {.components = 4, .keys = 5}; }}}) {
    all.emplace_back(name, small());
    set(all.back().second.attention.spec);
  }
  for (auto& [name, config] : all) {
    SCOPED_TRACE(name);
    config.context = kPrompt + 3 * kSteps;
    const Transformer model = make(config, at::kFloat);
    const at::Tensor ids =
        at::randint(0, kVocab, {4, config.context}, at::detail::createCPUGenerator(5),
                    at::TensorOptions(at::kLong));
    const at::Tensor prompt = ids.narrow(0, 0, 1).narrow(1, 0, kPrompt);
    const auto read = [&] {
      DecodeState state = model.make_decode_state(1, config.context);
      model.decode(prompt, state);
      return state;
    };
    // Steps [from, to) of text n.
    const auto go_on = [&](DecodeState& state, int64_t n, int64_t from, int64_t to) {
      at::Tensor z;
      for (int64_t i = from; i < to; ++i)
        z = model.decode(ids.narrow(0, n, 1).narrow(1, kPrompt + i, 1), state);
      return z;
    };
    DecodeState first = read();
    DecodeState second = first.fork(), third = first.select(std::vector<int64_t>{0});
    const at::Tensor of_second = go_on(second, 1, 0, kSteps), of_first = go_on(first, 0, 0, kSteps);
    DecodeState fourth = second.fork();
    const at::Tensor of_third = go_on(third, 2, 0, kSteps),
                     of_fourth = go_on(fourth, 3, kSteps, 2 * kSteps);
    DecodeState alone = read();
    EXPECT_TRUE(at::equal(of_first, go_on(alone, 0, 0, kSteps)));
    alone = read();
    EXPECT_TRUE(at::equal(of_third, go_on(alone, 2, 0, kSteps)));
    alone = read();
    EXPECT_TRUE(at::equal(of_second, go_on(alone, 1, 0, kSteps)));
    EXPECT_TRUE(at::equal(of_fourth, go_on(alone, 3, kSteps, 2 * kSteps)));
  }
}

// A dynamic rule depends on the length of the text: each is rotated by its own table.
TEST(FusedDecoderTexts, TextsOfOtherRopeTablesHaveTheBitsOfEachAlone) {
  ModelConfig c = small();
  c.context = 8;
  c.rope.scaling.kind = RopeScaling::Kind::dynamic_ntk;
  c.rope.scaling.factor = 2.0;
  c.rope.scaling.original_context = 8;
  const Transformer model = make(c, at::kFloat);
  const at::Tensor two = tokens(2);
  const auto fresh = [&] {
    std::vector<DecodeState> states;
    for (const int64_t capacity : {10, 14}) states.push_back(model.make_decode_state(1, capacity));
    return states;
  };
  std::vector<DecodeState> alone = fresh(), together = fresh();
  const std::vector<DecodeState*> both{&together[0], &together[1]};
  EXPECT_FALSE(same_rotation(alone[0].rope, alone[1].rope));
  for (int64_t n = 0; n < 10; ++n) {
    const at::Tensor ids = two.narrow(1, n, 1), z = model.decode_together(ids, both);
    for (int64_t b = 0; b < 2; ++b)
      EXPECT_TRUE(at::equal(z[b], model.decode(ids.narrow(0, b, 1), alone[b])[0])) << n;
  }
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
