// The fused decoder, one token through all layers: the same numbers as layer by layer, for every
// option it takes; the same bits for any number of threads and sequences; a reason where it does
// not go.
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
#include <utility>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/nn/transformer.h"
#include "tests/support/expect_error.h"

namespace fovea::fused_decoder_test {
namespace {

constexpr int64_t kVocab = 53;
constexpr int64_t kTokens = 14;

using Named = std::pair<std::string, ModelConfig>;

ModelConfig small() {
  ModelConfig c{.layers = 3, .width = 40, .heads = 4, .kv_heads = 2, .head_dim = 16};
  c.ffn_width = 72;
  c.context = 32;
  return c;
}

FocusSpec hard_focus() {
  FocusSpec f{.gate = FocusSpec::Gate::hard, .groups = 4, .top_k = 1, .window = 3};
  f.width = 8;
  return f;
}

template <class E, class Set>
void add_all(std::vector<Named>& all, const char* key, Set set) {
  const auto names = enum_names(E{});
  for (size_t i = 0; i < names.size(); ++i) {
    ModelConfig c = small();
    set(c, static_cast<E>(i));
    all.emplace_back(std::string(key) + " " + std::string(names[i]), c);
  }
}

/// Attention that the decoder leaves to other kernels.
std::vector<Named> by_kernels() {
  std::vector<Named> all;
  const auto add = [&](const char* name, auto set) {
    ModelConfig c = small();
    set(c, c.attention.spec);
    all.emplace_back(name, c);
  };
  add("convolutions", [](ModelConfig& c, AttentionSpec& s) {
    s.multi_token.before = {.queries = 3, .keys = 3};
    s.multi_token.after = {.queries = 2, .keys = 3};
    c.attention.multi_token.init = KernelStart::uniform;
  });
  add("convolutions in one layer", [](ModelConfig& c, AttentionSpec& s) {
    s.multi_token.before = {.queries = 3, .keys = 3};
    c.attention.multi_token.init = KernelStart::uniform;
    c.attention.multi_token.layers = {1};
  });
  add("talking heads", [](ModelConfig&, AttentionSpec& s) {
    s.head_mix.before = s.head_mix.after = HeadMixSpec::Kind::full;
  });
  add("convolutions by Eq. 4 in a window, shifted keys and values",
      [](ModelConfig& c, AttentionSpec& s) {
        s.multi_token.before = {.queries = 3, .keys = 4};
        s.multi_token.after = {.queries = 2, .keys = 3};
        s.multi_token.equation = MultiTokenSpec::Equation::eq4;
        s.multi_token.renormalise = true;
        s.kv_shift = {.keys = true, .values = true, .start = 0.4};
        s.mask.window = 5;
        c.attention.multi_token.init = KernelStart::uniform;
      });
  add("head output", [](ModelConfig&, AttentionSpec& s) {
    s.head_output.norm = HeadOutputSpec::Norm::rms;
    s.head_output.gate = HeadOutputSpec::Gate::scalar;
  });
  add("KV shifting", [](ModelConfig&, AttentionSpec& s) {
    s.kv_shift = {.keys = true, .values = true, .start = 0.4};
  });
  add("parallel block, convolutions", [](ModelConfig& c, AttentionSpec& s) {
    c.block = BlockLayout::parallel;
    s.multi_token.before = {.queries = 2, .keys = 3};
    c.attention.multi_token.init = KernelStart::uniform;
  });
  return all;
}

/// Attention that no kernel has: the walk computes it between those of the decoder.
std::vector<Named> walked() {
  std::vector<Named> all = by_kernels();
  const auto add = [&](const char* name, auto set) {
    ModelConfig c = small();
    set(c, c.attention.spec);
    all.emplace_back(name, c);
  };
  add("differential", [](ModelConfig&, AttentionSpec& s) { s.differential = true; });
  add("a window with sinks",
      [](ModelConfig&, AttentionSpec& s) { s.mask = {.window = 4, .sinks = 2}; });
  add("soft gate, learned temperature", [](ModelConfig&, AttentionSpec& s) {
    s.focus = hard_focus();
    s.focus.gate = FocusSpec::Gate::log;
    s.temperature.kind = TemperatureSpec::Kind::learned;
  });
  add("potentials by chunk", [](ModelConfig&, AttentionSpec& s) {
    s.focus = hard_focus();
    s.focus.potentials = FocusSpec::Potentials::chunk;
  });
  add("SparQ", [](ModelConfig&, AttentionSpec& s) { s.sparq = {.components = 4, .keys = 5}; });
  add("one key head for many",
      [](ModelConfig& c, AttentionSpec&) { c.heads = 40, c.kv_heads = 1, c.head_dim = 8; });
  add("adapters", [](ModelConfig& c, AttentionSpec&) {
    c.lora = {.rank = 2, .alpha = 4.0, .targets = {"all-linear"}};
  });
  return all;
}

/// What the fused decoder takes.
std::vector<Named> options() {
  std::vector<Named> all = walked();
  const auto add = [&](const char* name, auto set) {
    ModelConfig c = small();
    set(c);
    all.emplace_back(name, c);
  };
  add_all<BlockLayout>(all, "block", [](ModelConfig& c, BlockLayout x) { c.block = x; });
  add_all<BlockLayout>(all, "LayerNorm, biases, block", [](ModelConfig& c, BlockLayout x) {
    c.block = x;
    c.norm = NormKind::layer;
    c.biases = {true, true, true};
  });
  add_all<NormKind>(all, "norm", [](ModelConfig& c, NormKind x) { c.norm = x; });
  add_all<FeedForward>(all, "feed-forward", [](ModelConfig& c, FeedForward x) {
    c.feed_forward = x;
    c.biases.feed_forward = true;
  });
  add_all<QkNorm>(all, "qk norm", [](ModelConfig& c, QkNorm x) {
    c.qk_norm = x;
    c.biases.qkv = true;
    c.rope.rotary_dim = 8;
  });
  add_all<Positions>(all, "positions", [](ModelConfig& c, Positions x) { c.positions = x; });
  add_all<BiasSpec::Kind>(all, "bias", [](ModelConfig& c, BiasSpec::Kind x) {
    c.attention.spec.bias.kind = x;
    if (x != BiasSpec::Kind::none) c.positions = Positions::none;
    c.attention.spec.bias.buckets = 8;
    c.attention.spec.bias.max_distance = 9;
  });
  add_all<TemperatureSpec::Bound>(all, "temperature", [](ModelConfig& c, TemperatureSpec::Bound x) {
    c.attention.spec.temperature.kind = TemperatureSpec::Kind::learned;
    c.attention.spec.temperature.bound = x;
  });
  for (const auto form : {TemperatureSpec::Form::token, TemperatureSpec::Form::global}) {
    add("temperature by token or global", [&](ModelConfig& c) {
      c.attention.spec.temperature = {.kind = TemperatureSpec::Kind::learned, .form = form};
    });
  }
  add("constant temperature, soft-cap, sink", [](ModelConfig& c) {
    c.attention.spec.temperature.value = 0.6;
    c.attention.spec.soft_cap = 3.0;
    c.attention.spec.sink_logit = true;
  });
  add("window, every third layer full without positions", [](ModelConfig& c) {
    c.attention.spec.mask.window = 4;
    c.attention.full = {.every = 3, .layers = {}, .positions = false};
  });
  add("scales, cap, own head", [](ModelConfig& c) {
    c.embedding_scale = 0.0, c.logit_scale = 0.3, c.logit_cap = 2.0, c.tied = false;
  });
  add("one key head", [](ModelConfig& c) { c.kv_heads = 1; });
  const auto add_focus = [&](const char* name, auto set) {
    ModelConfig c = small();
    c.attention.spec.focus = hard_focus();
    set(c, c.attention.spec.focus);
    all.emplace_back(std::string("hard Focus") + name, c);
  };
  add_focus("", [](ModelConfig&, FocusSpec&) {});
  add_focus(", top-2 of 5, sinks",
            [](ModelConfig&, FocusSpec& f) { f.groups = 5, f.top_k = 2, f.sinks = 2; });
  add_focus(", 2k > K", [](ModelConfig&, FocusSpec& f) { f.top_k = 3; });
  add_focus(", softmax, learned temperature, soft-cap, sink", [](ModelConfig& c, FocusSpec& f) {
    f.assignment = FocusSpec::Assignment::softmax;
    c.attention.spec.temperature.kind = TemperatureSpec::Kind::learned;
    c.attention.spec.soft_cap = 3.0;
    c.attention.spec.sink_logit = true;
  });
  add_focus(", one layer without", [](ModelConfig& c, FocusSpec&) {
    c.attention.focus.layers = {0, 2};
  });
  add_focus(" where no window is", [](ModelConfig& c, FocusSpec&) {
    c.attention.spec.mask.window = 4;
    c.attention.full = {.every = 3, .layers = {}, .positions = false};
  });
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

at::Tensor tokens(int64_t b) {
  return at::randint(0, kVocab, {b, kTokens}, at::detail::createCPUGenerator(5),
                     at::TensorOptions(at::kLong));
}

/// Logits [b, t, v] of tokens decoded one at a time.
at::Tensor decoded(const Transformer& model, const at::Tensor& ids, PathName path) {
  DecodeState state = model.make_decode_state(ids.size(0), ids.size(1));
  std::vector<at::Tensor> all;
  for (int64_t i = 0; i < ids.size(1); ++i) {
    all.push_back(model.decode(ids.narrow(1, i, 1), state, true));
    EXPECT_EQ(state.path.name, path) << state.path.reason.text();
  }
  return at::cat(all, 1).to(at::kDouble);
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

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

TEST(FusedDecoder, SequencesOfUnequalLengthsHaveTheBitsOfEachAlone) {
  for (const auto& [name, config] : options()) {
    SCOPED_TRACE(name);
    expect_each_alone(make(config, at::kFloat), true, PathName::fused_decoder);
  }
}

// A pair in one state and a text in another, of other capacity.
TEST(FusedDecoder, TextsWithStatesOfTheirOwnHaveTheBitsOfEachAlone) {
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

// The convolution of one layer reads a temperature that no kernel has: only that layer is named.
TEST(FusedDecoder, CountsOnlyLayersWithoutKernels) {
  ModelConfig c = small();
  c.attention.spec.multi_token.before = {.queries = 3, .keys = 3};
  c.attention.spec.temperature.kind = TemperatureSpec::Kind::learned;
  c.attention.multi_token.layers = {1};
  EXPECT_THAT(reason_of(c, "one layer"), ::testing::HasSubstr("1 of 3"));
}

TEST(FusedDecoder, RefusesTextsThatItCannotTakeTogether) {
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

TEST(FusedDecoder, TheStateHasTheBytesThatWereForetold) {
  for (const auto& [name, config] : options()) {
    const Transformer model = make(config, at::kFloat);
    const DecodeState state = model.make_decode_state(2, kTokens);
    EXPECT_GE(model.decode_state_bytes(2, kTokens), state.bytes()) << name;
    EXPECT_LE(model.decode_state_bytes(2, kTokens), state.bytes() + 64 * 8 * 2) << name;
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

TEST(FusedDecoder, JoinsStatesOfOneModelAndOneRotationAlone) {
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

// The compiled form stays from token to token, and goes where it would be another.
TEST(FusedDecoder, IsCompiledOnceForAText) {
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
    return state.fused.get();
  };
  const FusedDecoder* const first = step();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(step(), first);
  state.truncate(1);
  EXPECT_EQ(step(), first);
  EXPECT_EQ(state.fork().fused, nullptr);
  const std::shared_ptr<FusedDecoder> kept = state.fused;  // its address is not used again
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
              first);
  }
  EXPECT_NE(change([&] { model.hold_matrices_in(at::kFloat); }), first);
  model.compute().fused_decoder = false;
  state.truncate(0);
  model.decode(ids.narrow(1, 0, 1), state);
  EXPECT_EQ(state.fused, nullptr);
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
    const std::string plan = i < kScans ? "scan" : "sorted";
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
  EXPECT_THAT(reason(c, 17), ::testing::HasSubstr("sequences"));
  EXPECT_THAT(reason(c, 1, at::kDouble), ::testing::HasSubstr("Double"));
  c.head_dim = 6;
  EXPECT_THAT(reason(c), ::testing::HasSubstr("8"));
  c = small();
  c.attention.spec.routing.clusters = 3;
  EXPECT_THAT(reason(c), ::testing::HasSubstr("routing"));
  c = small();
  c.attention.spec.streaming.recent = 4;
  EXPECT_THAT(reason(c), ::testing::HasSubstr("streaming"));
  c = small();
  c.rope.layout = RopeLayout::interleaved;
  EXPECT_THAT(reason(c), ::testing::HasSubstr("interleaved"));
}

}  // namespace
}  // namespace fovea::fused_decoder_test
