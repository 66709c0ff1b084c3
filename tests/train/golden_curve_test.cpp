// Losses of ten AdamW steps equal those of an independent implementation
// (tests/golden/make_training_curve.py).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "fovea/base/files.h"
#include "fovea/nn/transformer.h"
#include "fovea/train/optimizer.h"
#include "fovea/train/schedule.h"

namespace fovea::golden_curve_test {
namespace {

constexpr int64_t kVocab = 64, kContext = 16, kRows = 2, kSteps = 10;

ModelConfig golden_config(const std::string& curve) {
  ModelConfig config;
  config.vocab_size = kVocab;
  config.layers = 2;
  config.width = 32;
  config.heads = 4;
  config.kv_heads = 2;
  config.ffn_width = 64;
  config.context = kContext;
  config.qk_norm = QkNorm::head_rms;
  if (curve == "focal_0.4") config.attention.spec.temperature.value = 0.4;
  if (curve == "learned_prefix")
    config.attention.spec.temperature.kind = TemperatureSpec::Kind::learned;
  return config.resolved(kVocab);
}

/// The script's formula: element j of the i-th name in sorted order.
void fill_by_formula(Transformer& model) {
  const at::NoGradGuard no_grad;
  std::vector<std::string> names = model.parameters().names();
  std::sort(names.begin(), names.end());
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string& name = names[i];
    if (name.ends_with("temperature.bias"))
      continue;  // F-3: its start is the model's own, the middle of the bounds
    const bool norm = name.find("norm") != std::string::npos;
    const bool temperature = name.find("temperature") != std::string::npos;
    const double scale = norm ? 0.1 : temperature ? 0.05 : 0.2;
    at::Tensor value = model.parameters().find(name)->value;
    auto* data = value.mutable_data_ptr<float>();
    for (int64_t j = 0; j < value.numel(); ++j) {
      const auto x = static_cast<double>(j);
      const double wave = std::sin(1.0 + static_cast<double>(i) + 0.7 * x +
                                   0.013 * x * static_cast<double>(j % 17));
      data[j] = static_cast<float>((norm ? 1.0 : 0.0) + scale * wave);
    }
  }
}

at::Tensor tokens_of(int64_t step, int64_t shift) {
  std::vector<int64_t> tokens;
  for (int64_t b = 0; b < kRows; ++b) {
    for (int64_t t = shift; t < kContext + shift; ++t) {
      tokens.push_back((11 * b + 5 * t + (t * t) % 7 + 13 * step) % kVocab);
    }
  }
  return at::tensor(tokens).view({kRows, kContext});
}

class GoldenCurve : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenCurve, TenStepsEqualTheIndependentImplementation) {
  const auto golden = nlohmann::json::parse(read_file(
      FOVEA_SOURCE_DIR "/tests/golden/training_curve.json"))["curves"][GetParam()]["float32"];
  Transformer model(golden_config(GetParam()), 0);
  fill_by_formula(model);
  AdamW optimizer(model.parameters(), {.weight_decay = 0.1, .clip = 1.0});
  const ScheduleConfig schedule{.warmup_steps = 3, .final_ratio = 0.1};
  for (int64_t step = 0; step < kSteps; ++step) {
    const at::Tensor loss = model.loss({.tokens_bt = tokens_of(step, 0)}, tokens_of(step, 1)).loss;
    EXPECT_NEAR(loss.item<double>(), golden["loss"][step].get<double>(), 1e-5) << "step " << step;
    loss.backward();
    const double norm = golden["gradient_norm"][step].get<double>();
    EXPECT_NEAR(optimizer.clip_gradients(), norm, 1e-4 * norm) << "step " << step;
    optimizer.step(5e-3 * schedule_multiplier(schedule, static_cast<double>(step),
                                              static_cast<double>(warmup_steps(schedule, kSteps)),
                                              kSteps));
    optimizer.clear_gradients();
  }
}

INSTANTIATE_TEST_SUITE_P(Curves, GoldenCurve,
                         ::testing::Values("standard", "focal_0.4", "learned_prefix"));

}  // namespace
}  // namespace fovea::golden_curve_test
