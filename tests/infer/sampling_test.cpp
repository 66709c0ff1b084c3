// Sampling against distributions that Hugging Face's logits processors gave
// (tests/golden/make_sampling_cases.py).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/infer/sampling.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/config/reader.h"
#include "tests/support/expect_error.h"

namespace fovea::sampling_test {
namespace {

at::Tensor row(const std::vector<float>& values) { return at::tensor(values); }

TEST(Sampling, DistributionsAreThoseOfTransformers) {
  const auto cases =
      nlohmann::json::parse(read_file(FOVEA_SOURCE_DIR "/tests/golden/sampling.json"));
  ASSERT_GE(cases.size(), 10U);
  for (const auto& item : cases) {
    SamplingOptions options;
    read_fields(parse_json(item["options"].dump(), "case"), options);
    const auto logits = item["logits"].get<std::vector<float>>();
    Sampler sampler(options, 0, static_cast<int64_t>(logits.size()));
    sampler.add_prompt(item["prompt"].get<std::vector<int32_t>>());
    std::vector<double> found(logits.size());
    for (const TokenProbability& t : sampler.distribution(row(logits)))
      found[static_cast<size_t>(t.token)] = t.probability;
    const auto expected = item["probabilities"].get<std::vector<double>>();
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i] == 0, expected[i] == 0) << item["options"] << " token " << i;
      EXPECT_NEAR(found[i], expected[i], 2e-6) << item["options"] << " token " << i;
    }
  }
}

TEST(Sampling, GreedyTakesTheHighestAndTiesGoToTheLowerId) {
  Sampler sampler({.temperature = 0.0}, 5, 4);
  EXPECT_EQ(sampler.next(row({0.0f, 3.0f, 1.0f, 3.0f})), 1);
}

TEST(Sampling, TiesAtTheBorderOfTopKGoToTheLowerId) {
  const Sampler sampler({.temperature = 1.0, .top_k = 2}, 0, 4);
  const auto kept = sampler.distribution(row({1.0f, 3.0f, 1.0f, 0.0f}));
  ASSERT_EQ(kept.size(), 2U);
  EXPECT_EQ(kept[0].token, 1);
  EXPECT_EQ(kept[1].token, 0);
}

// p_i = softmax: the share of 20000 draws is within 5 standard errors of it.
TEST(Sampling, DrawsFollowTheDistribution) {
  Sampler sampler({.temperature = 1.0}, 11, 3);
  const at::Tensor logits = row({0.0f, 1.0f, 2.0f});
  const at::Tensor expected = at::softmax(logits, 0);
  constexpr int kDraws = 20000;
  std::map<int32_t, int> counts;
  for (int i = 0; i < kDraws; ++i) ++counts[sampler.next(logits)];
  for (int32_t token = 0; token < 3; ++token) {
    const double p = expected[token].item<double>();
    EXPECT_NEAR(counts[token] / static_cast<double>(kDraws), p,
                5 * std::sqrt(p * (1 - p) / kDraws));
  }
}

// Filters that leave everything take the way of distribution(), in the same order.
TEST(Sampling, DrawsOfAllTokensAreThoseOfTheDistribution) {
  const at::Tensor logits =
      at::randn({1300}, at::detail::createCPUGenerator(3), at::TensorOptions(at::kFloat)) * 3;
  for (const double penalty : {1.0, 1.4}) {
    Sampler quick({.temperature = 0.7, .repetition_penalty = penalty}, 9, 1300),
        slow({.temperature = 0.7, .min_p = 1e-9, .repetition_penalty = penalty}, 9, 1300);
    for (int n = 0; n < 200; ++n) EXPECT_EQ(quick.next(logits), slow.next(logits)) << n;
  }
}

TEST(Sampling, FrequencyPenaltyCountsGeneratedTokensOnlyAndEachTime) {
  Sampler sampler({.temperature = 0.0, .frequency_penalty = 0.6}, 0, 3);
  sampler.add_prompt(std::vector<int32_t>{0});
  const at::Tensor logits = row({2.0f, 1.0f, 0.9f});
  // 2.0, then 1.4, then 0.8 for token 0.
  EXPECT_EQ(sampler.next(logits), 0);
  EXPECT_EQ(sampler.next(logits), 0);
  EXPECT_EQ(sampler.next(logits), 1);
  EXPECT_EQ(sampler.next(logits), 2);
}

TEST(Sampling, PresencePenaltyCountsGeneratedTokensOnlyAndOnce) {
  Sampler sampler({.temperature = 0.0, .presence_penalty = 0.6}, 0, 3);
  sampler.add_prompt(std::vector<int32_t>{0});
  const at::Tensor logits = row({2.0f, 1.5f, 0.9f});
  EXPECT_EQ(sampler.next(logits), 0);  // 2.0, then 1.4
  EXPECT_EQ(sampler.next(logits), 1);  // 1.5, then 0.9
  EXPECT_EQ(sampler.next(logits), 0);
  EXPECT_EQ(sampler.next(logits), 0);
}

TEST(Sampling, ImpossibleTokensAreNeverDrawn) {
  Sampler sampler({.temperature = 1.0}, 3, 3);
  const float none = -std::numeric_limits<float>::infinity();
  for (int i = 0; i < 200; ++i) EXPECT_EQ(sampler.next(row({none, 0.5f, none})), 1);
}

TEST(Sampling, ImpossibleOptionsAndLogitsAreRefusedByName) {
  EXPECT_ERROR(ConfigError, Sampler({.temperature = -1.0}, 0, 2), "'temperature'", "-1");
  EXPECT_ERROR(ConfigError, Sampler({.top_k = -1}, 0, 2), "'top_k'");
  EXPECT_ERROR(ConfigError, Sampler({.top_p = 0.0}, 0, 2), "'top_p'");
  EXPECT_ERROR(ConfigError, Sampler({.min_p = 1.5}, 0, 2), "'min_p'");
  EXPECT_ERROR(ConfigError, Sampler({.repetition_penalty = 0.0}, 0, 2), "'repetition_penalty'");
  Sampler sampler({}, 0, 2);
  EXPECT_ERROR(NumericalError, sampler.next(row({0.0f, NAN})), "token 1");
  EXPECT_ERROR(ShapeError, sampler.next(row({0.0f})), "2 logits");
}

}  // namespace
}  // namespace fovea::sampling_test
