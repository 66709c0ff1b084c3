// Inspecting models: numbers of the page from a model at work.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/compare/inspect.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/support/expect_error.h"

namespace fovea::inspect_test {
namespace {

using namespace fovea::testing;

Transformer model_of(bool focus) {
  ModelConfig c;
  c.layers = 2, c.width = 16, c.heads = 2, c.ffn_width = 32, c.context = 64;
  if (focus)
    c.attention.spec.focus = {
        .gate = FocusSpec::Gate::log, .groups = 4, .top_k = 1, .window = 4, .sinks = 1};
  c.attention.spec.multi_token.before = {2, 3};
  c.attention.multi_token.layers = {1};
  c.attention.spec.head_mix.after = HeadMixSpec::Kind::full;
  return Transformer(c.resolved(byte_tokenizer()->vocab_size()), 1);
}

constexpr const char* kText = "The keeper gave 12 keys, and the keeper kept 1.";

TEST(Inspect, GathersLayersKernelsGroupsAndMapsOfAModel) {
  const Transformer model = model_of(true);
  const InspectModel seen =
      inspect_model("m", model, *byte_tokenizer(), kText, {.layers = {1}, .heads = {0}});
  ASSERT_EQ(seen.layers.size(), 2u);
  EXPECT_EQ(seen.layers[1].entropy.size(), 2u);
  EXPECT_NE(seen.layers[1].pipeline.find("focus log"), std::string::npos);
  ASSERT_EQ(seen.maps.size(), 1u);
  EXPECT_EQ(seen.maps[0].layer, 1);
  ASSERT_EQ(seen.kernels.size(), 2u);  // two heads of layer 1, before the softmax
  EXPECT_EQ(kernel_kind(seen.kernels[0].weights, 2, 3), KernelKind::identity);
  ASSERT_EQ(seen.mixes.size(), 2u);
  EXPECT_NEAR(seen.mixes[0].diagonal_mean, 1.0, 1e-6);
  EXPECT_NEAR(seen.mixes[0].other_mean_size, 0.0, 1e-6);
  ASSERT_EQ(seen.focus.size(), 2u);
  for (const InspectFocus& focus : seen.focus) {
    double share = 0.0;
    ASSERT_EQ(focus.first_choices.size(), seen.tokens.size());
    for (const InspectGroup& group : focus.groups)
      EXPECT_NEAR(group.share * static_cast<double>(seen.tokens.size()),
                  static_cast<double>(std::ranges::count(focus.first_choices, group.group)), 1e-9);
    for (const InspectGroup& group : focus.groups) {
      share += group.share;
      EXPECT_LE(group.purity, 1.0);
    }
    EXPECT_NEAR(share, 1.0, 1e-9);
    EXPECT_LT(focus.pairs_kept, 1.0);
    EXPECT_GT(focus.pairs_kept, focus.distant_kept);
    ASSERT_FALSE(focus.pairs.empty());
    for (size_t n = 0; n < focus.pairs.size(); ++n) {
      EXPECT_GE(focus.pairs[n].query - focus.pairs[n].key, 4);
      if (n > 0) {
        EXPECT_GE(focus.pairs[n - 1].agreement, focus.pairs[n].agreement);
      }
    }
  }
}

TEST(Inspect, ModelsWithoutFocusHaveNoGroups) {
  const InspectModel seen = inspect_model("m", model_of(false), *byte_tokenizer(), kText, {});
  EXPECT_TRUE(seen.focus.empty());
  EXPECT_EQ(seen.maps.size(), 4u);
}

TEST(Inspect, TokenClassesFollowTheirFirstLetter) {
  EXPECT_EQ(token_class(" keeper"), "word");
  EXPECT_EQ(token_class("The"), "word");
  EXPECT_EQ(token_class("ing"), "continuation");
  EXPECT_EQ(token_class(" 12"), "digits");
  EXPECT_EQ(token_class(","), "punctuation");
  EXPECT_EQ(token_class("\n "), "space");
}

TEST(Inspect, AttentionThatIsNoNumberIsAnError) {
  Transformer model = model_of(false);
  const at::NoGradGuard no_grad;
  model.parameters().find("model.layers.1.self_attn.q_proj.weight")->value.fill_(std::nan(""));
  EXPECT_ERROR(NumericalError, inspect_model("m", model, *byte_tokenizer(), kText, {}), "layer 1");
}

TEST(Inspect, RefusesLayersHeadsAndTextsThatAreNotThere) {
  const Transformer model = model_of(false);
  const auto look = [&](const std::string& text, const InspectOptions& options) {
    return inspect_model("m", model, *byte_tokenizer(), text, options);
  };
  EXPECT_ERROR(ConfigError, look(kText, {.layers = {2}}), "--layers", "2");
  EXPECT_ERROR(ConfigError, look(kText, {.heads = {-1}}), "--heads", "-1");
}

}  // namespace
}  // namespace fovea::inspect_test
