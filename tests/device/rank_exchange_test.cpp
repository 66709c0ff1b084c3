// Ranks on a device: its tensors go by an exchange of devices, never by the host. Each rank is a
// thread with connections of its own; the exchange is one of threads.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "fovea/runtime/device_for_tests.h"
#include "fovea/runtime/gloo_communicator.h"
#include "fovea/runtime/ring_gather.h"
#include "fovea/train/sharded_layers.h"
#include "fovea/train/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_device.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"
#include "tests/train/tiny_run.h"

namespace fovea::rank_exchange_test {
namespace {

using namespace fovea::testing;
using std::chrono::milliseconds;

class ThreadExchange final : public DeviceExchange {
 public:
  ThreadExchange(RankTable& table, int64_t rank, std::atomic<int64_t>& calls)
      : ranks_(table, rank), calls_(calls) {}
  void sum(const at::Tensor& tensor) override {
    ++calls_;
    ranks_.sum(std::span(&tensor, 1));
  }
  void broadcast(const at::Tensor& tensor, int64_t from) override {
    ++calls_;
    ranks_.broadcast(std::span(&tensor, 1), from);
  }
  void gather(const at::Tensor& rows_rn) override {
    ++calls_;
    ring_gather(rows_rn, ranks_);
  }
  bool idle() override { return true; }
  void give_up() override {}

 private:
  ThreadRank ranks_;
  std::atomic<int64_t>& calls_;
};

class RankExchange : public ::testing::Test {
 protected:
  /// body(ranks) on a thread a rank; the message of the error of each, or "".
  std::vector<std::string> run(int64_t size, const std::function<void(JoinedRanks&)>& body) {
    const std::string file = (folder_ / ("store" + std::to_string(++runs_))).string();
    table_ = std::make_unique<RankTable>(size);
    std::vector<std::string> errors(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          const auto ranks = join_ranks({.launcher = RankPlace::Launcher::processes,
                                         .rank = rank,
                                         .size = size,
                                         .one_machine = true,
                                         .file = file},
                                        {.meeting = milliseconds(20'000),
                                         .exchange = milliseconds(20'000),
                                         .sign_of_life = milliseconds(300)});
          body(*ranks);
        } catch (const Error& error) {
          errors[static_cast<size_t>(rank)] = fmt::format("{}: {}", error.kind(), error.what());
          table_->meeting.leave();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
  }
  DeviceExchangeMaker maker() {
    return [this](const DeviceExchangePlace& place) {
      return std::make_unique<ThreadExchange>(*table_, place.rank, calls_);
    };
  }
  void on_fake(JoinedRanks& ranks) {
    ranks.compute_on(fake_device(), "gpu " + std::to_string(ranks.rank()), maker());
  }

  TemporaryFolder folder_;
  std::unique_ptr<RankTable> table_;
  std::atomic<int64_t> calls_ = 0;
  int runs_ = 0;
};

const auto kNoErrors = ::testing::Each("");

at::Tensor there(const at::Tensor& here) { return here.to(fake_device()); }

TEST_F(RankExchange, TensorsOfTheDeviceStayThereAndOthersGoByGloo) {
  EXPECT_THAT(
      run(3,
          [&](JoinedRanks& ranks) {
            on_fake(ranks);
            const auto number = static_cast<double>(ranks.rank() + 1);
            const at::Tensor a = there(at::full({3, 4}, number)),
                             b = there(at::arange(24.0).view({4, 6})).t() * number,
                             copied = there(at::full({5}, number)), rows = there(at::zeros({3, 7})),
                             here = at::full({2}, number);
            rows.select(0, ranks.rank()).fill_(number);
            ranks.barrier();
            const int64_t before = calls_;
            ranks.barrier();
            std::optional<CountedPulls> pulls;
            if (ranks.is_first()) pulls.emplace();
            ranks.barrier();
            const at::Tensor summed[] = {a, b};
            ranks.sum(summed);
            ranks.broadcast(std::span(&copied, 1), 1);
            ring_gather(rows, ranks);
            const at::Tensor unequal = ranks.gather_rows(there(at::ones({ranks.rank(), 2})));
            ranks.barrier();
            EXPECT_EQ(pulls ? pulls->count() : 0, 0) << (pulls ? pulls->text() : "");
            pulls.reset();
            EXPECT_EQ(calls_ - before, 3 * 4) << "each rank: a bucket, a copy, rows, rows";
            ranks.barrier();
            ranks.sum(std::span(&here, 1));
            EXPECT_EQ(calls_ - before, 3 * 4) << "by Gloo";
            EXPECT_TRUE(here.equal(at::full({2}, 6.0)));
            EXPECT_TRUE(a.cpu().equal(at::full({3, 4}, 6.0)));
            EXPECT_TRUE(b.cpu().equal(at::arange(24.0).view({4, 6}).t() * 6.0));
            EXPECT_TRUE(copied.cpu().equal(at::full({5}, 2.0)));
            EXPECT_TRUE(rows.cpu().equal(at::arange(1.0, 4.0).view({3, 1}).expand({3, 7})));
            EXPECT_EQ(unequal.size(0), 3);
          }),
      kNoErrors);
}

TEST_F(RankExchange, AnExchangeThatComputesWronglyIsFoundAtTheStart) {
  class Wrong final : public DeviceExchange {
   public:
    void sum(const at::Tensor& tensor) override { tensor.mul_(3.0); }
    void broadcast(const at::Tensor&, int64_t) override {}
    void gather(const at::Tensor&) override {}
    bool idle() override { return true; }
    void give_up() override {}
  };
  EXPECT_THAT(run(2,
                  [&](JoinedRanks& ranks) {
                    ranks.compute_on(fake_device(), "gpu " + std::to_string(ranks.rank()),
                                     [](auto&) { return std::make_unique<Wrong>(); });
                  }),
              ::testing::Each(::testing::HasSubstr("the sums of 2 ranks to be right")));
}

TEST_F(RankExchange, WhatDoesNotFitTogetherIsNamedOnEveryRank) {
  using ::testing::AllOf;
  using ::testing::Each;
  using ::testing::HasSubstr;
  EXPECT_THAT(run(3,
                  [&](JoinedRanks& ranks) {
                    ranks.compute_on(ranks.rank() == 1 ? at::kCPU : fake_device(),
                                     "gpu " + std::to_string(ranks.rank()), maker());
                  }),
              Each(AllOf(HasSubstr("ConfigError"), HasSubstr("rank 1 of 3 without"),
                         HasSubstr("train.device=cpu"))));
  EXPECT_THAT(run(3,
                  [&](JoinedRanks& ranks) {
                    ranks.compute_on(fake_device(), ranks.rank() == 1 ? "one" : "two", maker());
                  }),
              Each(AllOf(HasSubstr("ConfigError"), HasSubstr("ranks 0, 2 of 3 have one together"),
                         HasSubstr("CUDA_VISIBLE_DEVICES"))));
  const auto missing = run(2, [&](JoinedRanks& ranks) {
    ranks.compute_on(fake_device(), "gpu " + std::to_string(ranks.rank()),
                     [&](const DeviceExchangePlace& place) -> std::unique_ptr<DeviceExchange> {
                       require<ConfigError>(place.rank == 0, "nccl", "its library is missing");
                       return maker()(place);
                     });
  });
  EXPECT_THAT(missing[0], HasSubstr("another rank cannot exchange"));
  EXPECT_THAT(missing[1], AllOf(HasSubstr("ConfigError"), HasSubstr("its library is missing")));
  // All on the CPU need nothing of it.
  EXPECT_THAT(run(2, [&](JoinedRanks& ranks) { ranks.compute_on(at::kCPU, "", maker()); }),
              kNoErrors);
}

TEST_F(RankExchange, TheLossesOfTwoRanksOnDevicesAreThoseOfOne) {
  const DeviceForTests device(fake_device());
  Recipe recipe = tiny_recipe(folder_.path());
  recipe.train.batch_rows = 4;
  recipe.train.accumulation = 2;
  const auto train = [&](Communicator& ranks) {
    Recipe own = recipe;
    own.run_folder = (folder_ / ("run" + std::to_string(ranks.size()))).string();
    std::vector<double> losses;
    TrainCallbacks callbacks;
    callbacks.step = [&](const TrainProgress& p) { losses.push_back(p.loss); };
    Trainer(own, callbacks, nullptr, ranks).run();
    return losses;
  };
  const std::vector<double> one = train(alone());
  EXPECT_THAT(run(2,
                  [&](JoinedRanks& ranks) {
                    on_fake(ranks);
                    const std::vector<double> two = train(ranks);
                    ASSERT_EQ(two.size(), one.size());
                    for (size_t n = 0; n < one.size(); ++n)
                      EXPECT_NEAR(two[n], one[n], 1e-6 * one[n]) << "step " << n + 1;
                  }),
              kNoErrors);
  EXPECT_GT(calls_, 0);
}

// Passes of two ranks in one process would wait for each other inside of autograd's one thread for
// the device, so the steps of a layer are taken by hand.
TEST_F(RankExchange, LayersAreCutGatheredAndReducedOnTheDevice) {
  const auto make = [](FirstNumbers first) {
    return std::make_unique<Transformer>(tiny_config(), 5, fake_device(), first);
  };
  const auto whole = make(FirstNumbers::drawn);
  EXPECT_THAT(run(2,
                  [&](JoinedRanks& ranks) {
                    const at::NoGradGuard no_grad;
                    on_fake(ranks);
                    const auto model = make(FirstNumbers::awaited);
                    ShardedLayers layers(*model, ranks);
                    layers.draw();
                    layers.gather(0, 1);
                    for (Parameter& parameter : model->parameters().all()) {
                      if (!parameter.name.starts_with("model.layers.0.")) continue;
                      EXPECT_TRUE(parameter.value.cpu().equal(
                          whole->parameters().find(parameter.name)->value.cpu()))
                          << parameter.name;
                      parameter.value.mutable_grad() =
                          at::full_like(parameter.value, static_cast<double>(ranks.rank() + 1));
                    }
                    layers.reduce(0);
                    layers.finish();
                    for (Parameter& parameter : model->parameters().all()) {
                      if (!layers.has(parameter) || !parameter.name.starts_with("model.layers.0."))
                        continue;
                      const at::Tensor own = layers.own_gradient(parameter);
                      EXPECT_EQ(own.device(), fake_device());
                      EXPECT_TRUE(own.cpu().equal(at::full_like(own.cpu(), 3.0))) << parameter.name;
                    }
                  }),
              kNoErrors);
}

}  // namespace
}  // namespace fovea::rank_exchange_test
