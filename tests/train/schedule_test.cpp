// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "fovea/base/error.h"
#include "fovea/config/reader.h"
#include "fovea/train/stage_schedule.h"
#include "tests/support/expect_error.h"

namespace fovea::schedule_test {
namespace {

using Kind = ScheduleConfig::Kind;

double at(Kind kind, double step, double warmup = 10, double total = 110, double ratio = 0.1) {
  return schedule_multiplier({.kind = kind, .final_ratio = ratio}, step, warmup, total);
}

// Invariant 13.21: the values of section 3.7 at steps 0, w - 1, w and n - 1, by hand for w = 10, n
// = 110, m = 0.1.
TEST(Schedule, CosineHasTheValuesOfTheFormula) {
  EXPECT_DOUBLE_EQ(at(Kind::cosine, 0), 0.0);
  EXPECT_DOUBLE_EQ(at(Kind::cosine, 9), 0.9);
  EXPECT_DOUBLE_EQ(at(Kind::cosine, 10), 1.0);
  EXPECT_DOUBLE_EQ(at(Kind::cosine, 60), 0.55);
  EXPECT_NEAR(at(Kind::cosine, 109), 0.1 + 0.45 * (1 + std::cos(std::numbers::pi * 0.99)), 1e-15);
  EXPECT_DOUBLE_EQ(at(Kind::cosine, 110), 0.1);
}

TEST(Schedule, LinearHasTheValuesOfTheFormula) {
  EXPECT_DOUBLE_EQ(at(Kind::linear, 0), 0.0);
  EXPECT_DOUBLE_EQ(at(Kind::linear, 9), 0.9);
  EXPECT_DOUBLE_EQ(at(Kind::linear, 10), 1.0);
  EXPECT_NEAR(at(Kind::linear, 109), 0.109, 1e-15);
  EXPECT_NEAR(at(Kind::linear, 109, 10, 110, 0.0), 0.01, 1e-15);
}

TEST(Schedule, ConstantWarmsUpUnlessLinguasFormIsAskedFor) {
  EXPECT_DOUBLE_EQ(at(Kind::constant, 0), 0.0);
  EXPECT_DOUBLE_EQ(at(Kind::constant, 9), 0.9);
  EXPECT_DOUBLE_EQ(at(Kind::constant, 10), 1.0);
  EXPECT_DOUBLE_EQ(at(Kind::constant, 109), 1.0);
  const ScheduleConfig lingua{.kind = Kind::constant, .constant_ignores_warmup = true};
  for (const double step : {0.0, 9.0, 10.0, 109.0}) {
    EXPECT_DOUBLE_EQ(schedule_multiplier(lingua, step, 10, 110), 1.0);
  }
}

TEST(Schedule, InverseSquareRootRisesFallsAndRestsOnItsFloor) {
  EXPECT_DOUBLE_EQ(at(Kind::inverse_sqrt, 0, 10, 110, 0.0), 0.0);
  EXPECT_DOUBLE_EQ(at(Kind::inverse_sqrt, 9), 0.9);
  EXPECT_DOUBLE_EQ(at(Kind::inverse_sqrt, 10), 1.0);
  EXPECT_DOUBLE_EQ(at(Kind::inverse_sqrt, 40), 0.5);
  EXPECT_NEAR(at(Kind::inverse_sqrt, 109), std::sqrt(10.0 / 109.0), 1e-15);
  EXPECT_DOUBLE_EQ(at(Kind::inverse_sqrt, 4000), 0.1);
}

TEST(Schedule, WarmUpIsInStepsOrAShareOfTheRun) {
  EXPECT_EQ(warmup_steps({.warmup_steps = 7}, 1000), 7);
  EXPECT_EQ(warmup_steps({.warmup_fraction = 0.02}, 1000), 20);
  EXPECT_EQ(warmup_steps({.warmup_steps = 0}, 1000), 0);
  EXPECT_DOUBLE_EQ(at(Kind::cosine, 0, 0), 1.0);  // without one the first step has the peak
}

TEST(Schedule, ImpossibleValuesAreRefusedWithTheirKey) {
  const auto check = [](const ScheduleConfig& config) {
    check_fields("recipe", config, "train.schedule");
  };
  EXPECT_ERROR(ConfigError, check({.final_ratio = 1.5}), "train.schedule.final_ratio", "1.5");
  EXPECT_ERROR(ConfigError, check({.warmup_steps = -2}), "train.schedule.warmup_steps");
}

TEST(StageSchedule, ATimeBudgetDrivesTheScheduleByTheClock) {
  StageSchedule stage;
  stage.seconds = 100;
  stage.learning_rate = 2.0;
  stage.schedule = {.kind = Kind::linear, .warmup_fraction = 0.1, .final_ratio = 0.0};
  EXPECT_DOUBLE_EQ(stage.learning_rate_at(7, 5.0), 1.0);
  EXPECT_DOUBLE_EQ(stage.learning_rate_at(7, 10.0), 2.0);
  EXPECT_DOUBLE_EQ(stage.learning_rate_at(7, 55.0), 1.0);
  EXPECT_FALSE(stage.finished(1'000'000, 99.9));
  EXPECT_TRUE(stage.finished(1, 100.0));
  EXPECT_DOUBLE_EQ(stage.fraction(1, 25.0), 0.25);
  stage.schedule.warmup_steps = 10;
  EXPECT_DOUBLE_EQ(stage.learning_rate_at(5, 0.0), 1.0);
}

TEST(StageSchedule, ATokenBudgetBecomesStepsAndStagesFollowEachOther) {
  Recipe recipe;
  recipe.train.tokens = 1000;
  recipe.train.batch_rows = 2;
  recipe.train.accumulation = 3;
  recipe.train.sequence_length = 16;
  EXPECT_EQ(stage_schedules(recipe).front().steps, 11);  // 96 tokens a step
  recipe.train.tokens = 0;
  recipe.train.stages = {{.name = "a", .steps = 5},
                         {.steps = 7, .rope_theta = 5e5, .weight_decay = 0.0}};
  const auto stages = stage_schedules(recipe);
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages[1].first_step, 5);
  EXPECT_EQ(stages[1].name, "stage 2");
  EXPECT_EQ(stages[1].rope_theta, 5e5);
  EXPECT_EQ(stages[1].weight_decay, 0.0);
  EXPECT_EQ(stages[0].weight_decay, recipe.train.optimizer.weight_decay);
  EXPECT_EQ(stages[1].sequence_length, 16);
}

}  // namespace
}  // namespace fovea::schedule_test
