// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/task_pairs.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/tiny_model.h"

namespace fovea::task_pairs_test {
namespace {

/// One question of 10 tokens and one of 4, the begin mark included.
Task two_questions() {
  std::vector<TaskItem> items{{.context = "abcdefg", .choices = {" hi", " other"}, .gold = 0},
                              {.context = "ab", .choices = {" c"}, .gold = 0}};
  return {.name = "t",
          .title = "T",
          .kind = TaskKind::multiple_choice,
          .items = [items](const TaskInput&) { return items_of(items); }};
}

ModelConfig with(const std::function<void(ModelConfig&)>& change) {
  ModelConfig config = testing::tiny_config();
  config.context = 64;
  change(config);
  return config.resolved(config.vocab_size);
}

std::optional<TaskPairs> pairs_of(const Transformer& model) {
  return task_pairs(model, *byte_tokenizer(), two_questions(),
                    {.tokenizer = *byte_tokenizer(), .data = {}});
}

TEST(TaskPairs, FullAttentionHasNone) {
  EXPECT_FALSE(pairs_of(Transformer(with([](ModelConfig&) {}), 1)));
}

TEST(TaskPairs, AWindowIsCountedByItsPlacesAndQuestionsInsideAreNamed) {
  const Transformer model(with([](ModelConfig& c) { c.attention.spec.mask.window = 4; }), 1);
  const auto pairs = pairs_of(model);
  ASSERT_TRUE(pairs);
  EXPECT_EQ(pairs->questions, 2);
  EXPECT_EQ(pairs->untouched, 1);
  EXPECT_DOUBLE_EQ(pairs->tokens, 7.0);
  const double seen = 1 + 2 + 3 + 7 * 4 + 10, all = 55 + 10;
  EXPECT_NEAR(pairs->share, seen / all, 1e-12);
}

TEST(TaskPairs, HardFocusIsCountedByItsGroupsAndOffReadsAll) {
  Transformer model(
      with([](ModelConfig& c) {
        c.attention.spec.focus = {
            .gate = FocusSpec::Gate::log, .groups = 8, .top_k = 1, .window = 2, .sinks = 0};
      }),
      1);
  model.compute().focus = FocusMode::window;
  const auto local = pairs_of(model);
  ASSERT_TRUE(local);
  EXPECT_NEAR(local->share, (1 + 9 * 2 + 1 + 3 * 2) / 65.0, 1e-6);
  EXPECT_EQ(local->untouched, 0);
  model.compute().focus = FocusMode::hard;
  const auto grouped = pairs_of(model);
  ASSERT_TRUE(grouped);
  EXPECT_GE(grouped->share, local->share);
  model.compute().focus = FocusMode::off;
  EXPECT_FALSE(pairs_of(model).has_value() && pairs_of(model)->share < 1.0);
}

}  // namespace
}  // namespace fovea::task_pairs_test
