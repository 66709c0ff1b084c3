// A model with other rotary positions is the model whose folder says so.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/changed_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "fovea/text/tokenizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace fovea::changed_model_test {
namespace {

using Kind = RopeScaling::Kind;

/// Of a text beyond the trained context of 16 tokens.
at::Tensor logits_of(const Transformer& model) {
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = (at::arange(40) * 17 % 259).unsqueeze(0);
  return model.logits(model.hidden({.tokens_bt = tokens}));
}

class RopeChange : public ::testing::Test {
 protected:
  std::filesystem::path folder(const std::string& name, const RopeSpec& rope) {
    ModelConfig config = testing::tiny_config();
    config.rope = rope;
    const std::filesystem::path path = folder_ / name;
    save_model(path, Transformer(config, 7), *byte_tokenizer());
    return path;
  }
  testing::TemporaryFolder folder_;
};

TEST_F(RopeChange, IsTheModelWhoseFolderHasTheSetting) {
  const std::filesystem::path plain = folder("plain", {});
  const std::pair<std::vector<std::string>, RopeSpec> cases[] = {
      {{"theta=500000"}, {.theta = 5e5}},
      {{"scaling.kind=linear", "scaling.factor=4"},
       {.scaling = {.kind = Kind::linear, .factor = 4, .original_context = 16}}},
      {{"scaling.kind=dynamic_ntk", "scaling.factor=2"},
       {.scaling = {.kind = Kind::dynamic_ntk, .factor = 2, .original_context = 16}}},
      {{"scaling.kind=yarn", "scaling.factor=4", "scaling.original_context=8"},
       {.scaling = {.kind = Kind::yarn, .factor = 4, .original_context = 8}}},
      {{"theta=20000", "scaling.kind=llama3", "scaling.factor=8"},
       {.theta = 2e4, .scaling = {.kind = Kind::llama3, .factor = 8, .original_context = 16}}},
  };
  const at::Tensor unchanged = logits_of(load_model(plain).model);
  int number = 0;
  for (const auto& [keys, rope] : cases) {
    const LoadedModel changed = load_changed(plain, {.rope = keys}),
                      given = load_model(folder(fmt::format("given-{}", ++number), rope));
    EXPECT_EQ(changed.config, given.config) << keys.front();
    EXPECT_TRUE(changed.drawn.empty());
    const at::Tensor logits = logits_of(changed.model);
    EXPECT_TRUE(logits.equal(logits_of(given.model))) << keys.front();
    EXPECT_FALSE(at::allclose(logits, unchanged)) << keys.front();
  }
}

TEST_F(RopeChange, GoesWithAnotherAttention) {
  const LoadedModel changed =
      load_changed(folder("plain", {}), {.attention = {"mask.window=8"}, .rope = {"theta=500000"}});
  EXPECT_EQ(changed.config.rope.theta, 5e5);
  EXPECT_EQ(changed.config.attention.spec.mask.window, 8);
}

TEST_F(RopeChange, KeysOfTheWeightsAndUnknownOnesAreRefused) {
  const ModelConfig config = testing::tiny_config();
  EXPECT_ERROR(ConfigError, with_rope_keys(config, {"layout=interleaved"}), "layout", "weights");
  EXPECT_ERROR(ConfigError, with_rope_keys(config, {"scaling.kid=yarn"}), "kid", "kind");
  EXPECT_ERROR(ConfigError, with_rope_keys(config, {"scaling.kind=yarn", "scaling.factor=0.5"}),
               "factor", "0.5");
  ModelConfig without = config;
  without.positions = Positions::none;
  EXPECT_ERROR(ConfigError, with_rope_keys(without, {"theta=5000"}), "model.rope", "positions");
}

}  // namespace
}  // namespace fovea::changed_model_test
