// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "fovea/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace fovea::optimizer_test {
namespace {

ParameterRegistry make_registry() {
  ParameterRegistry registry(1);
  registry.add({.name = "w", .init = {Init::Kind::truncated_normal, 0.5, 1.0}}, {3, 5});
  registry.add({.name = "norm", .decay = false, .init = {Init::Kind::ones, 0.0, 1.0}}, {5});
  registry.add({.name = "slow", .learning_rate_scale = 0.5, .init = {Init::Kind::ones, 0.0, 1.0}},
               {2});
  registry.add({.name = "frozen", .trainable = false, .init = {Init::Kind::ones, 0.0, 1.0}}, {2});
  return registry;
}

void set_gradients(ParameterRegistry& registry, int step) {
  for (Parameter& parameter : registry.all()) {
    if (!parameter.trainable) continue;
    const int64_t n = parameter.value.numel();
    parameter.value.mutable_grad() =
        at::sin(at::arange(n, at::kFloat) + static_cast<float>(step)).view(parameter.value.sizes());
  }
}

/// Eq. of Loshchilov and Hutter in float64, one number at a time.
struct Scalar {
  double p, m = 0, v = 0;
  void step(double g, double lr, double wd, int k) {
    const double b1 = 0.9, b2 = 0.95, eps = 1e-8;
    m = b1 * m + (1 - b1) * g;
    v = b2 * v + (1 - b2) * g * g;
    p = p * (1 - lr * wd) -
        lr * (m / (1 - std::pow(b1, k))) / (std::sqrt(v / (1 - std::pow(b2, k))) + eps);
  }
};

TEST(AdamW, EqualsTheFormulaWithoutDecayOnNormsAndWithScaledRates) {
  ParameterRegistry registry = make_registry();
  AdamW optimizer(registry, {.weight_decay = 0.1});
  Scalar w{registry.find("w")->value.view(-1)[7].item<double>()}, norm{1.0}, slow{1.0};
  for (int k = 1; k <= 5; ++k) {
    set_gradients(registry, k);
    const double lr = 0.01 * k;
    w.step(std::sin(7.0 + k), lr, 0.1, k);
    norm.step(std::sin(2.0 + k), lr, 0.0, k);
    slow.step(std::sin(1.0 + k), 0.5 * lr, 0.1, k);
    optimizer.step(lr);
  }
  EXPECT_NEAR(registry.find("w")->value.view(-1)[7].item<double>(), w.p, 1e-6);
  EXPECT_NEAR(registry.find("norm")->value[2].item<double>(), norm.p, 1e-6);
  EXPECT_NEAR(registry.find("slow")->value[1].item<double>(), slow.p, 1e-6);
  EXPECT_TRUE(at::equal(registry.find("frozen")->value, at::ones({2})));
}

TEST(AdamW, ClippingScalesTheGlobalNormAndLeavesSmallGradientsAlone) {
  ParameterRegistry registry = make_registry();
  AdamW optimizer(registry, {.clip = 1.0});
  set_gradients(registry, 0);
  double squares = 0;
  for (const char* name : {"w", "norm", "slow"}) {
    squares += registry.find(name)->value.grad().square().sum().item<double>();
  }
  const at::Tensor before = registry.find("w")->value.grad().clone();
  EXPECT_NEAR(optimizer.clip_gradients(), std::sqrt(squares), 1e-5);
  EXPECT_TRUE(at::allclose(registry.find("w")->value.grad(), before / std::sqrt(squares), 1e-5));
  const at::Tensor small = registry.find("w")->value.grad().mul_(0.1).clone();
  registry.find("norm")->value.mutable_grad().zero_();
  registry.find("slow")->value.mutable_grad().zero_();
  optimizer.clip_gradients();
  EXPECT_TRUE(at::equal(registry.find("w")->value.grad(), small));
}

TEST(AdamW, ARestoredStateContinuesBitForBit) {
  const testing::TemporaryFolder folder;
  ParameterRegistry a = make_registry(), b = make_registry();
  AdamW first(a, {}), second(b, {});
  set_gradients(a, 1);
  first.step(0.1);
  write_safetensors(folder / "o", first.state());
  for (Parameter& parameter : b.all()) {
    const at::NoGradGuard no_grad;
    parameter.value.copy_(a.find(parameter.name)->value);
  }
  second.load_state(SafetensorsFile(folder / "o"));
  EXPECT_EQ(second.steps_done(), 1);
  set_gradients(a, 2);
  set_gradients(b, 2);
  first.step(0.1);
  second.step(0.1);
  EXPECT_TRUE(at::equal(a.find("w")->value, b.find("w")->value));

  TensorMap other = first.state();
  other["exp_avg.w"] = at::ones({2, 2});
  write_safetensors(folder / "o", other);
  EXPECT_ERROR(CheckpointError, second.load_state(SafetensorsFile(folder / "o")), "exp_avg.w",
               "[3, 5]");
  other.erase("exp_avg.w");
  write_safetensors(folder / "o", other);
  EXPECT_ERROR(CheckpointError, second.load_state(SafetensorsFile(folder / "o")), "exp_avg.w");
}

TEST(AdamW, ClearedGradientsTakeNoMemory) {
  ParameterRegistry registry = make_registry();
  AdamW optimizer(registry, {});
  set_gradients(registry, 0);
  optimizer.clear_gradients();
  EXPECT_FALSE(registry.find("w")->value.grad().defined());
}

}  // namespace
}  // namespace fovea::optimizer_test
