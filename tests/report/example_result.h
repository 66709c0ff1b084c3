// Made-up comparisons for tests: curves that look like training, and names that try to break out of
// every format.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "fovea/report/compare_result.h"

namespace fovea::testing {

/// Deterministic noise in [-1, 1].
class Noise {
 public:
  explicit Noise(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
  double operator()() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<double>(state_ >> 11) * 0x1.0p-52 - 1;
  }

 private:
  uint64_t state_;
};

struct VariantPlan {
  std::string name, description;
  double end = 2.4;        // bits per byte after training
  double sharpness = 1;    // of the attention maps
  double temperature = 0;  // where it ends; 0: none
  double speed = 21000;
};

inline CompareRun example_run(const VariantPlan& plan, int64_t seed) {
  constexpr int64_t kSteps = 400, kTokensPerStep = 4096;
  Noise noise(static_cast<uint64_t>(seed) * 31 + plan.name.size());
  const double seed_effect = 0.012 * std::sin(static_cast<double>(seed) * 2.4),
               own = 0.008 * noise();
  const double end = plan.end + seed_effect + own;
  CompareRun run{.seed = seed, .tokens = kSteps * kTokensPerStep, .attention_path = "torch_sdpa"};
  const auto bits_at = [&](int64_t step) {
    return end + (8.0 - end) * std::exp(-static_cast<double>(step) / 28) +
           0.9 * std::exp(-static_cast<double>(step) / 130);
  };
  for (int64_t step = 1; step <= kSteps; step += 3) {
    run.curve.push_back({.step = step,
                         .tokens = step * kTokensPerStep,
                         .seconds = static_cast<double>(step * kTokensPerStep) / plan.speed,
                         .train_loss = bits_at(step) * std::log(2.0) + 0.05 * noise(),
                         .ln_z = 0.1,
                         .ln_z_rms = 6.0 * std::exp(-static_cast<double>(step) / 200)});
  }
  for (int64_t step = 40; step <= kSteps; step += 40) {
    run.validation_curve.push_back(
        {.step = step, .tokens = step * kTokensPerStep, .bits_per_byte = bits_at(step)});
    if (plan.temperature <= 0) continue;
    TemperaturePoint point{.step = step, .per_layer = {}, .clipped_share = 0.1};
    for (int layer = 0; layer < 4; ++layer) {
      const double way = 1 - std::exp(-static_cast<double>(step) / 150);
      point.per_layer.push_back(0.66 + way * (plan.temperature - 0.66 + 0.06 * layer) +
                                0.003 * noise());
    }
    run.temperature.push_back(point);
  }
  run.validation_bits_per_byte = bits_at(kSteps);
  run.validation_loss = run.validation_bits_per_byte * std::log(2.0);
  run.validation_perplexity = std::exp(run.validation_loss);
  run.seconds = static_cast<double>(run.tokens) / plan.speed;
  run.tokens_per_second = plan.speed * (1 + 0.01 * noise());
  run.peak_memory_bytes = 912'000'000 + 1'000'000 * seed;
  return run;
}

inline AttentionMap example_map(int64_t layer, int64_t head, double sharpness,
                                const std::string& text) {
  AttentionMap map{.layer = layer, .head = head, .tokens = {}, .rows = {}};
  for (const char c : text) map.tokens.emplace_back(1, c);
  Noise noise(static_cast<uint64_t>(layer * 7 + head + 1));
  for (size_t i = 0; i < text.size(); ++i) {
    std::vector<double> row;
    double sum = 0;
    for (size_t j = 0; j <= i; ++j) {
      const double back = static_cast<double>(i - j);
      const double same = text[i] == text[j] ? 2.0 : 0.0;
      const double logit = same - back / (4.0 + 6.0 * static_cast<double>(head)) +
                           (j == 0 ? 1.5 : 0.0) + 0.5 * noise();
      row.push_back(std::exp(sharpness * logit));
      sum += row.back();
    }
    for (double& weight : row) weight /= sum;
    map.rows.push_back(std::move(row));
  }
  return map;
}

inline CompareVariant example_variant(const VariantPlan& plan, int64_t seeds) {
  CompareVariant variant{
      .name = plan.name, .description = plan.description, .parameters = 1'260'000};
  variant.config = {{"model.attention.temperature", plan.temperature > 0 ? "learned" : "1.0"}};
  for (int64_t seed = 1; seed <= seeds; ++seed) variant.runs.push_back(example_run(plan, seed));
  const std::string text =
      "def forward(self, input):\n    output = self.linear(input)\n    return output";
  for (int64_t layer = 0; layer < 2; ++layer) {
    for (int64_t head = 0; head < 2; ++head) {
      variant.attention_maps.push_back(example_map(layer, head, plan.sharpness, text));
    }
  }
  variant.sample = {
      .prompt = "def forward(self, ",
      .text =
          "input: Tensor) -> Tensor:\n        \"\"\"Return the input of the self.\"\"\"\n"
          "        return self.module(input, self.weight)\n"};
  return variant;
}

/// The comparison of the demo, in its form.
inline CompareResult example_result(int64_t seeds = 3) {
  CompareResult result{.title = "Does focused attention help a small model of Python code?"};
  result.budget = BudgetKind::tokens;
  result.budget_amount = 400 * 4096;
  result.created = "2026-01-31T12:00:00Z";
  result.command = "fovea compare recipes/demo.yaml";
  result.dtype = "bfloat16";
  result.machine = {.cpu = "Example CPU",
                    .cores = 2,
                    .isa = "avx512_bf16",
                    .device = "cpu",
                    .memory_bytes = 8'000'000'000};
  result.code_version = "0.1.0";
  result.torch_version = "2.11.0";
  result.data = {.sources = {"python-sources"},
                 .bytes = 31'400'000,
                 .documents = 2104,
                 .validation_bytes = 610'000,
                 .fingerprint = "00c0ffee00c0ffee"};
  result.reference = "standard";
  result.baselines = {{.name = "byte bigram", .bits_per_byte = 3.312, .text_bytes = 31'000'000},
                      {.name = "byte trigram", .bits_per_byte = 2.684}};
  result.variants.push_back(example_variant(
      {"standard", "softmax(QKᵀ/√d), the usual attention", 2.402, 1.0, 0, 22100}, seeds));
  result.variants.push_back(
      example_variant({"focal t = 0.4", "constant temperature", 2.371, 2.2, 0, 21900}, seeds));
  result.variants.push_back(example_variant(
      {"focal prefix", "learned temperature of the prefix", 2.398, 1.6, 0.48, 20400}, seeds));
  result.variants.push_back(example_variant(
      {"sharp start", "standard, q starts 1/t larger", 2.414, 1.9, 0, 22300}, seeds));
  summarise(result);
  return result;
}

/// Texts that end strings, tags, scripts and gnuplot commands, in every place that holds text.
inline CompareResult hostile_result() {
  CompareResult result = example_result();
  result.title = "<script>window.hacked = 1</script> \"quoted\" 'single' `tick` & ${x} </title>";
  result.reference = "std' ; system \"touch hacked\" # <b>\"&";
  result.variants[0].name = result.reference;
  result.variants[1].name =
      "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>";
  result.variants[2].name = "注意力 温度 🔥 é\xCC\x81 \xFF\xFE bad bytes @@0@@ \\n %s {/Symbol a}";
  result.variants[3].name =
      std::string("a-name-without-any-space-that-goes-on-") + std::string(220, 'x');
  result.variants[1].description = "<style>body{display:none}</style>";
  result.variants[2].sample.text = "</pre><script>window.hacked=1</script>\n\0\x1b[31m<!-- ";
  result.variants[0].attention_maps[0].tokens[3] = "</script><script>window.hacked=1</script>";
  result.variants[3].config.emplace_back("key.\"><script>window.hacked=1</script>",
                                         std::string(300, 'y'));
  result.data.sources = {std::string(200, '/'), "<a href=\"http://127.0.0.1:9/\">"};
  result.command = "fovea compare \"$(reboot)\" <&>";
  result.baselines[0].name = "bigram\nset output '/tmp/hacked'";
  summarise(result);
  return result;
}

}  // namespace fovea::testing
