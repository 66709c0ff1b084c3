// Ranks: a run of several, each with its slice of the rows, is the run of one.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "fovea/checkpoint/run_folder.h"
#include "fovea/report/metrics_log.h"
#include "fovea/train/optimizer.h"
#include "fovea/train/slow_ranks.h"
#include "fovea/train/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/train/ranks_run.h"

namespace fovea::ranks_test {
namespace {

using namespace fovea::testing;

using RanksTest = RanksRun;

TEST(Communicator, GathersTensorsAndUnequalNumbersOfRowsInTheOrderOfRanks) {
  run_ranks(3, [](Communicator& ranks) {
    const at::Tensor own = at::full({ranks.rank() + 1, 2}, static_cast<double>(ranks.rank()));
    const at::Tensor rows = ranks.gather_rows(own);
    EXPECT_TRUE(rows.select(1, 0).equal(at::tensor({0., 1., 1., 2., 2., 2.})));
    EXPECT_TRUE(ranks.gather(own[0]).select(1, 1).equal(at::tensor({0., 1., 2.})));
    EXPECT_EQ(ranks.sum(own[0])[0].item<double>(), 3.0);
    EXPECT_EQ(own[0][0].item<double>(), static_cast<double>(ranks.rank()));
    EXPECT_TRUE(ranks.any(ranks.rank() == 1));
    EXPECT_FALSE(ranks.any(false));
  });
}

TEST_F(RanksTest, TwoRanksWithHalfTheRowsTakeTheStepsOfOne) {
  const std::pair<std::string, std::string> models[] = {
      {"standard", "{}"},
      {"learned-temperature", R"({"temperature": {"kind": "learned"}})"},
      {"multi-token",
       R"({"multi_token": {"before": {"queries": 2, "keys": 3}, "after": {"queries": 2, "keys": 4}},
           "head_mix": {"before": "full", "after": "groups", "group": 2},
           "head_output": {"norm": "rms", "gate": "scalar"}})"},
      {"focus",
       R"({"focus": {"gate": "log", "groups": 4, "top_k": 1, "window": 2, "sinks": 1,
                     "recluster_interval": 5}})"},
      {"focus-follows",
       R"({"focus": {"gate": "log", "groups": 4, "window": 2, "centroid_decay": 0.9}})"},
      {"routing", R"({"routing": {"clusters": 2, "keep": 8}})"},
  };
  for (const auto& [name, attention] : models) {
    const Run one = train(recipe(attention, name + "-1"), 1);
    const Run two = train(recipe(attention, name + "-2"), 2);
    EXPECT_EQ(one.losses.size(), 12u);
    expect_same(one, two, name);
    expect_same_ln_z(name + "-1", name + "-2");
    if (!one.result.evaluation.hard) continue;
    const auto near = [&](const std::vector<double>& a, const std::vector<double>& b) {
      EXPECT_THAT(a, ::testing::Pointwise(::testing::DoubleNear(1e-6), b)) << name;
    };
    near(one.result.evaluation.hard->pairs_kept, two.result.evaluation.hard->pairs_kept);
    near(one.result.evaluation.hard->largest_group, two.result.evaluation.hard->largest_group);
  }
}

TEST_F(RanksTest, ARunOfOneRankGoesOnWithThreeAndItsFilesAreOfTheFirst) {
  const std::string focus =
      R"({"focus": {"gate": "log", "groups": 4, "top_k": 1, "window": 2, "sinks": 1}})";
  Recipe part = recipe(focus, "part");
  part.train.schedule.kind = ScheduleConfig::Kind::constant;
  Recipe straight = recipe(focus, "straight");
  straight.train.schedule.kind = ScheduleConfig::Kind::constant;
  const Run never_stopped = train(straight, 1);
  part.train.steps = 6;
  Run run = train(part, 1);
  part.train.steps = 12;
  const Run rest = train(part, 3);
  EXPECT_EQ(rest.losses.size(), 6u);
  run.losses.insert(run.losses.end(), rest.losses.begin(), rest.losses.end());
  run.norms.insert(run.norms.end(), rest.norms.begin(), rest.norms.end());
  run.result = rest.result;
  expect_same(never_stopped, run, "1, then 3");
  EXPECT_EQ(read_metrics(folder_ / "part/metrics.jsonl").size(), 12u);
  EXPECT_EQ(list_checkpoints(folder_ / "part").back().step, 12);
}

TEST_F(RanksTest, SumsBesideTheBackwardPassGiveTheBitsOfSumsAfterIt) {
  const auto run = [&](const char* when, int64_t count) {
    setenv("FOVEA_GRADIENT_SUMS", when, 1);
    const Run made = train(recipe("{}", fmt::format("{}{}", when, count)), count);
    unsetenv("FOVEA_GRADIENT_SUMS");
    return made.losses;
  };
  EXPECT_EQ(run("beside", 2), run("after", 2));
  run("after", 1);
  for (const auto& line : read_metrics(folder_ / "after2/metrics.jsonl")) {
    const double exchanged = line.at("speed/gradient_sum_time"),
                 waited = line.at("speed/gradient_sum_wait_time");
    EXPECT_GT(exchanged, 0.0);
    EXPECT_GE(waited, exchanged) << "nothing hides them";
  }
  for (const auto& line : read_metrics(folder_ / "after1/metrics.jsonl"))
    EXPECT_FALSE(line.contains("speed/gradient_sum_time")) << "one rank sums nothing";
  EXPECT_ERROR(UsageError, run("never", 2), "FOVEA_GRADIENT_SUMS", "beside or after", "'never'");
  unsetenv("FOVEA_GRADIENT_SUMS");
}

// The ranks' clocks differ; all take as many steps, by the slowest.
TEST_F(RanksTest, ATimeBudgetEndsAtTheSameStepOnEveryRank) {
  Recipe r = recipe("{}", "timed");
  r.train.steps = 0;
  r.train.seconds = 0.2;
  std::vector<TrainResult> results(2);
  run_ranks(2, [&](Communicator& ranks) {
    results[static_cast<size_t>(ranks.rank())] = Trainer(r, {}, nullptr, ranks).run();
  });
  EXPECT_GE(results[0].steps, 1);
  EXPECT_EQ(results[0].steps, results[1].steps);
  EXPECT_EQ(results[0].seconds, results[1].seconds);
}

TEST_F(RanksTest, AStopThatOneRankHearsEndsAllAtTheSameStep) {
  Recipe r = recipe("{}", "stopped");
  std::atomic<bool> stop = false;
  std::vector<int64_t> last(2);
  const auto body = [&](Communicator& ranks) {
    TrainCallbacks callbacks;
    if (!ranks.is_first()) callbacks.stop = &stop;
    callbacks.step = [&](const TrainProgress& p) {
      last[static_cast<size_t>(ranks.rank())] = p.step;
      if (!ranks.is_first() && p.step == 5) stop = true;
    };
    EXPECT_ERROR(Interrupted, Trainer(r, callbacks, nullptr, ranks).run(), "stopped at step 5");
  };
  run_ranks(2, body);
  EXPECT_THAT(last, ::testing::Each(5));
  EXPECT_EQ(list_checkpoints(folder_ / "stopped").back().step, 5);
}

// Three matrices and a vector, one of them without a gradient, cut into parts that end inside of
// matrices.
TEST(SharedMoments, TakeTheStepsOfWholeOnesAndAreWrittenWhole) {
  const auto train = [](Communicator& ranks, int64_t fewest_to_shard) {
    ParameterRegistry registry(7);
    for (const char* name : {"a", "b", "c"})
      registry.add({.name = name, .init = {.kind = Init::Kind::normal, .value = 1.0}}, {5, 7});
    registry.add({.name = "scale", .decay = false, .init = {.kind = Init::Kind::ones}}, {4});
    AdamW optimizer(registry, {.weight_decay = 0.1}, ranks, fewest_to_shard);
    for (int step = 1; step <= 5; ++step) {
      for (Parameter& parameter : registry.all())
        if (parameter.name != "c")
          parameter.value.mutable_grad() = at::sin(parameter.value.detach() * step);
      optimizer.step(1e-2);
    }
    TensorMap all = optimizer.state();
    for (const Parameter& parameter : registry.all())
      all.emplace(parameter.name, parameter.value.detach().clone());
    return all;
  };
  const TensorMap alone_all = train(alone(), 1);
  for (const int64_t size : {2, 3, 50}) {
    run_ranks(size, [&](Communicator& ranks) {
      const TensorMap shared = train(ranks, 1);
      ASSERT_EQ(shared.size(), alone_all.size());
      for (const auto& [name, tensor] : alone_all) {
        ASSERT_EQ(shared.at(name).sizes(), tensor.sizes()) << name;
        EXPECT_TRUE(shared.at(name).allclose(tensor, 1e-6, 1e-7)) << name << " of " << size;
      }
    });
  }
}

TEST(SharedMoments, AreReadFromTheFileOfAnyNumberOfRanks) {
  const TemporaryFolder folder;
  const auto made = [](Communicator& ranks) {
    auto registry = std::make_unique<ParameterRegistry>(7);
    registry->add({.name = "a", .init = {.kind = Init::Kind::normal, .value = 1.0}}, {5, 7});
    auto optimizer = std::make_unique<AdamW>(*registry, OptimizerConfig{}, ranks, 1);
    return std::pair(std::move(registry), std::move(optimizer));
  };
  const auto step = [](ParameterRegistry& registry, AdamW& optimizer) {
    registry.find("a")->value.mutable_grad() = at::ones({5, 7});
    optimizer.step(1e-2);
  };
  TensorMap before;
  run_ranks(2, [&](Communicator& ranks) {
    const auto [registry, optimizer] = made(ranks);
    step(*registry, *optimizer);
    const TensorMap state = optimizer->state();
    if (!ranks.is_first()) return;
    before = state;
    write_safetensors(folder / "optimizer", state);
  });
  run_ranks(3, [&](Communicator& ranks) {
    const auto [registry, optimizer] = made(ranks);
    optimizer->load_state(SafetensorsFile(folder / "optimizer"));
    EXPECT_EQ(optimizer->steps_done(), 1);
    for (const auto& [name, tensor] : optimizer->state())
      EXPECT_TRUE(tensor.equal(before.at(name))) << name;
  });
}

TEST(SlowRanks, TheOneForWhichTheOthersWaitIsNamedOnce) {
  for (const int64_t size : {2, 4}) {
    run_ranks(size, [&](Communicator& ranks) {
      SlowRanks slow;
      slow.add(ranks.rank() == 1 ? 11.0 : 10.0);
      EXPECT_EQ(slow.find(ranks), "");
      slow.add(ranks.rank() == 1 ? 1.0 : 0.1);  // too short to tell
      EXPECT_EQ(slow.find(ranks), "");
      slow.add(ranks.rank() == 1 ? 29.0 : 9.9);
      EXPECT_THAT(slow.find(ranks),
                  ::testing::HasSubstr(fmt::format("rank 1 of {} takes 3.0 times as long", size)));
      slow.add(ranks.rank() == 1 ? 30.0 : 10.0);
      EXPECT_EQ(slow.find(ranks), "");
    });
  }
}

TEST_F(RanksTest, EveryRankNeedsARow) {
  Recipe r = recipe("{}", "few");
  r.train.batch_rows = 1;
  EXPECT_ERROR(ConfigError, train(r, 2), "at least one row for each of 2 ranks");
}

}  // namespace
}  // namespace fovea::ranks_test
