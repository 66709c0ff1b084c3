// The nearest start of Differential attention to a pretrained model (spec 1.2, 1.4).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/retrofit/differential_start.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "fovea/attention/mechanisms/head_output.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"
#include "tests/support/tiny_model.h"

namespace fovea::differential_start_test {
namespace {

using namespace fovea::testing;

ModelConfig even_heads(int64_t heads, int64_t kv_heads) {
  ModelConfig c = tiny_config();
  c.heads = heads, c.kv_heads = kv_heads, c.head_dim = 8;
  c.context = 64;
  return c.resolved(c.vocab_size);
}

std::vector<ModelInput> text() {
  std::vector<ModelInput> rows;
  for (int64_t row = 0; row < 8; ++row)
    rows.push_back({.tokens_bt = at::arange(64).mul(row + 3).remainder(97).view({1, 64})});
  return rows;
}

at::Tensor& weight(Transformer& model, const std::string& name) {
  return model.parameters().find("model.layers.0.self_attn." + name)->value;
}

// Both maps of a head read the keys that their heads read in the base (1.4).
TEST(DifferentialStart, HeadsKeepTheirKeys) {
  for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{4, 4}, {8, 4}, {12, 2}}) {
    const int64_t together = heads / kv_heads;
    std::vector<bool> used(static_cast<size_t>(heads));
    for (int64_t place = 0; place < heads; ++place) {
      const int64_t head = head_of_base(place, heads, kv_heads);
      EXPECT_FALSE(used[static_cast<size_t>(head)]);
      used[static_cast<size_t>(head)] = true;
      EXPECT_EQ(head / together, 2 * (place / 2 / together) + place % 2) << place;
      if (together == 1) {
        EXPECT_EQ(head, place);
      }
    }
  }
}

// Where both heads of a pair have one map, lambda 0 gives their outputs, normed together.
TEST(DifferentialStart, EqualMapsGiveTheHeadsOfTheBase) {
  const at::NoGradGuard no_grad;
  const ModelConfig config = even_heads(4, 2);
  Transformer base(config, 3);
  const int64_t d = config.head_dim;
  weight(base, "k_proj.weight")
      .narrow(0, d, d)
      .copy_(weight(base, "k_proj.weight").narrow(0, 0, d));
  for (int64_t h = 0; h < 2; ++h)  // heads 0 and 2, 1 and 3 are pairs
    weight(base, "q_proj.weight")
        .narrow(0, (2 + h) * d, d)
        .copy_(weight(base, "q_proj.weight").narrow(0, h * d, d));
  DifferentialStart start = differential_start(base, text());
  const at::Tensor pairs =
      base.head_outputs(text()[0], 0).unflatten(-1, {2, 2, d}).transpose(2, 3).flatten(3);
  const at::Tensor normed =
      pairs * at::rsqrt(pairs.square().mean(-1, true) + 1e-5) * (1.0 - lambda_init(0));
  // Of equal maps only 1 - lambda is seen, and the norm takes it away.
  EXPECT_LT(
      relative_error(start.model.head_outputs(text()[0], 0).unflatten(-1, {2, 2 * d}), normed),
      1e-3);
}

TEST(DifferentialStart, IsNearerToTheBaseThanTheMechanismAlone) {
  const at::NoGradGuard no_grad;
  for (const int64_t kv_heads : {4, 2}) {
    const Transformer base(even_heads(4, kv_heads), 3);
    int64_t told = 0;
    const DifferentialStart start =
        differential_start(base, text(), [&](int64_t layers) { told = layers; });
    EXPECT_EQ(told, base.config().layers);
    ASSERT_EQ(std::ssize(start.lambda), base.config().layers);
    Transformer alone(differential_config(base.config()), 3);
    for (Parameter& p : alone.parameters().all())
      if (const Parameter* same = base.parameters().find(p.name)) p.value.copy_(same->value);
    const auto distance = [&](const Transformer& model) {
      double sum = 0.0;
      for (const ModelInput& row : text())
        sum += (model.hidden(row) - base.hidden(row)).square().mean().item<double>();
      return sum;
    };
    EXPECT_LT(distance(start.model), 0.5 * distance(alone));
    for (const double error : start.error) {
      EXPECT_GT(error, 0.0);
      EXPECT_LT(error, 1.0);
    }
  }
}

// lambda = exp(lq1.lk1) - exp(lq2.lk2) + lambda_init (1.2).
TEST(DifferentialStart, LambdaIsWhatItTells) {
  const Transformer base(even_heads(4, 4), 3);
  DifferentialStart start = differential_start(base, text());
  const auto product = [&](const char* q, const char* k) {
    return (weight(start.model, q) * weight(start.model, k)).sum().item<double>();
  };
  EXPECT_NEAR(std::exp(product("lambda_q1", "lambda_k1")) -
                  std::exp(product("lambda_q2", "lambda_k2")) + lambda_init(0),
              start.lambda[0], 1e-5);
  EXPECT_NE(weight(start.model, "lambda_q1").abs().min().item<double>(), 0.0);
}

TEST(DifferentialStart, BasesWithoutPairsOrWithMoreAreRefused) {
  ModelConfig odd = tiny_config();
  odd.heads = 9, odd.kv_heads = 3;
  EXPECT_ERROR(ConfigError, differential_config(odd), "9 heads and 3 key heads");
  odd.heads = 6;
  EXPECT_ERROR(ConfigError, differential_config(odd), "6 heads and 3 key heads");
  ModelConfig focal = even_heads(4, 4);
  focal.attention.spec.temperature.value = 0.5;
  EXPECT_ERROR(UnsupportedError, differential_config(focal), "plain attention");
  ModelConfig lora = even_heads(4, 4);
  lora.lora = {.rank = 2, .alpha = 2.0, .targets = {"q_proj"}};
  EXPECT_ERROR(UnsupportedError, differential_config(lora), "LoRA");
}

}  // namespace
}  // namespace fovea::differential_start_test
