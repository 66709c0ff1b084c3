// Retention of hard Focus beside its baselines (spec 11.4, 11.7, U-13, U-26).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/retention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "fovea/kernels/common/mask_rule.h"
#include "tests/support/expect_error.h"
#include "tests/support/tiny_model.h"

namespace fovea::retention_test {
namespace {

using namespace fovea::testing;

ModelConfig focused(int64_t groups) {
  ModelConfig c = tiny_config();
  c.context = 64;
  c.attention.spec.focus = {
      .gate = FocusSpec::Gate::log, .groups = groups, .top_k = 1, .window = 4, .sinks = 2};
  return c.resolved(c.vocab_size);
}

std::string text(int64_t bytes) {
  std::string s;
  for (int64_t i = 0; i < bytes; ++i) s += static_cast<char>('a' + i * i % 26);
  return s;
}

double counted_pairs(int64_t tokens, const MaskRule& rule) {
  double kept = 0.0;
  for (int64_t i = 0; i < tokens; ++i)
    for (int64_t j = 0; j <= i; ++j) kept += allowed(rule, {0, i}, {0, j}) ? 1.0 : 0.0;
  return kept / (0.5 * static_cast<double>(tokens * (tokens + 1)));
}

TEST(Retention, PairsOfAWindowAreCountedAsTheMaskCountsThem) {
  for (const int64_t tokens : {1, 2, 17, 64})
    for (const int64_t window : {1, 3, 16, 64, 100})
      for (const int64_t sinks : {0, 1, 4, 80}) {
        const double counted = counted_pairs(tokens, {.window = window, .sinks = sinks});
        EXPECT_NEAR(window_pairs(tokens, window, sinks), counted, 1e-12)
            << tokens << ' ' << window << ' ' << sinks;
      }
}

TEST(Retention, TheWindowIsTheSmallestThatKeepsAsManyPairs) {
  for (const double pairs : {0.01, 0.3, 0.5, 0.9, 1.0}) {
    const int64_t w = window_of_pairs(100, pairs, 4);
    EXPECT_GE(window_pairs(100, w, 4), pairs);
    if (w > 1) {
      EXPECT_LT(window_pairs(100, w - 1, 4), pairs);
    }
  }
}

TEST(Retention, TheStrideIsTheNearestInPairs) {
  for (const double pairs : {0.2, 0.3, 0.5, 0.9, 1.0}) {
    const auto miss = [&](int64_t stride) {
      const MaskRule rule{
          .window = 8, .sinks = 2, .sparsity = MaskRule::Sparsity::strided, .stride = stride};
      EXPECT_NEAR(masked_share(100, rule), counted_pairs(100, rule), 1e-12);
      return std::abs(masked_share(100, rule) - pairs);
    };
    const double found = miss(stride_of_pairs(100, pairs, 8, 2));
    for (int64_t stride = 1; stride <= 100; ++stride) EXPECT_LE(found, miss(stride) + 1e-12);
  }
}

TEST(Retention, RowsHoldEveryTopKAndTheirWindowKeepsAsManyPairs) {
  Transformer model(focused(4), 5);
  const std::vector<ScoreDocument> documents{{"s", text(130)}};
  const RetentionResult result =
      measure_retention(model, *byte_tokenizer(), documents, {.copy = 16, .copy_windows = 2});
  ASSERT_EQ(result.rows.size(), 4u);
  const RetentionRow &one = result.rows[0], &two = result.rows[1];
  EXPECT_LT(one.trained.pairs, two.trained.pairs);
  EXPECT_GT(two.trained.pairs, two.trained.distant);
  for (const RetentionRow* row : {&one, &two}) {
    EXPECT_FALSE(row->full);
    EXPECT_NEAR(row->windowed.pairs, row->trained.pairs, 0.03);
    EXPECT_NE(row->windowed.perplexity, row->trained.perplexity);
    EXPECT_NEAR(row->strided.pairs, row->trained.pairs, 0.1);  // strides move in steps
    EXPECT_NE(row->strided.perplexity, row->windowed.perplexity);
    EXPECT_GT(row->strided.copy, 1.0);
    EXPECT_NE(row->random.perplexity, row->trained.perplexity);
    EXPECT_GT(row->random.copy, 1.0);
  }
  EXPECT_TRUE(result.rows[2].full);  // 2k > K: any two tokens meet
  EXPECT_EQ(result.rows[2].trained.perplexity, result.full.perplexity);
  EXPECT_NE(result.soft.perplexity, result.full.perplexity);
  EXPECT_EQ(model.compute().focus, FocusMode::configured);
  EXPECT_EQ(result.to_json()["rows"][0]["windowed"]["window"], one.window);
}

// The baseline is what a model with that window and no Focus computes.
TEST(Retention, TheWindowBaselineIsAModelWithThatWindow) {
  Transformer model(focused(4), 5);
  ModelConfig plain = focused(4);
  plain.attention.focus = {}, plain.attention.spec.focus = {};
  plain.attention.spec.mask = {.window = 9, .sinks = 2};
  const Transformer windowed(plain.resolved(plain.vocab_size), 5);
  model.compute().focus = FocusMode::window;
  model.compute().focus_change.window = 9;
  const ModelInput input{.tokens_bt = at::arange(50).view({1, 50})};
  const at::NoGradGuard no_grad;
  EXPECT_LT((model.hidden(input) - windowed.hidden(input)).abs().max().item<double>(), 1e-5);
}

TEST(Retention, TheStridedBaselineIsAModelWithThatMask) {
  Transformer model(focused(4), 5);
  ModelConfig plain = focused(4);
  plain.attention.focus = {}, plain.attention.spec.focus = {};
  plain.attention.spec.mask = {
      .window = 4, .sinks = 2, .sparsity = MaskRule::Sparsity::strided, .stride = 3};
  const Transformer strided(plain.resolved(plain.vocab_size), 5);
  model.compute().focus = FocusMode::window;
  model.compute().focus_change.stride = 3;
  const ModelInput input{.tokens_bt = at::arange(50).view({1, 50})};
  const at::NoGradGuard no_grad;
  EXPECT_LT((model.hidden(input) - strided.hidden(input)).abs().max().item<double>(), 1e-5);
}

TEST(Retention, WithoutSinksFewerPairsStay) {
  Transformer model(focused(4), 5);
  const std::vector<ScoreDocument> documents{{"s", text(60)}};
  const auto pairs = [&](int64_t sinks) {
    return measure_retention(model, *byte_tokenizer(), documents, {.sinks = sinks})
        .rows[0]
        .trained.pairs;
  };
  EXPECT_LT(pairs(0), pairs(-1));
  EXPECT_EQ(pairs(2), pairs(-1));
}

TEST(Retention, ModelsWithoutFocusAreRefused) {
  Transformer model(tiny_config(), 5);
  const std::vector<ScoreDocument> documents{{"s", text(60)}};
  EXPECT_ERROR(UnsupportedError, measure_retention(model, *byte_tokenizer(), documents, {}),
               "Focus");
}

}  // namespace
}  // namespace fovea::retention_test
