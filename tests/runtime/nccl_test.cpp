// NCCL on the GPU of this machine: one rank, for which every exchange changes nothing. Where there
// is no GPU, the reason why there is no exchange.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <optional>

#include "fovea/runtime/gloo_communicator.h"
#include "fovea/runtime/machine.h"
#include "fovea/runtime/ring_gather.h"
#include "fovea/runtime/side_stream.h"
#include "tests/support/devices.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace fovea::nccl_test {
namespace {

using testing::best_device;

class Nccl : public ::testing::Test {
 protected:
  std::unique_ptr<JoinedRanks> one_rank() const {
    return join_ranks({.launcher = RankPlace::Launcher::processes,
                       .one_machine = true,
                       .file = (folder_ / "store").string()});
  }
  /// Counts what reaches NCCL.
  class Counted final : public DeviceExchange {
   public:
    Counted(std::unique_ptr<DeviceExchange> nccl, int& calls)
        : nccl_(std::move(nccl)), calls_(calls) {}
    void sum(const at::Tensor& tensor) override {
      ++calls_;
      nccl_->sum(tensor);
    }
    void broadcast(const at::Tensor& tensor, int64_t from) override {
      ++calls_;
      nccl_->broadcast(tensor, from);
    }
    void gather(const at::Tensor& rows_rn) override {
      ++calls_;
      nccl_->gather(rows_rn);
    }
    bool idle() override { return nccl_->idle(); }
    void give_up() override { nccl_->give_up(); }

   private:
    std::unique_ptr<DeviceExchange> nccl_;
    int& calls_;
  };
  testing::TemporaryFolder folder_;
};

TEST_F(Nccl, IsThereOrTheReasonIsSaid) {
  if (why_no_nccl().empty()) {
    EXPECT_TRUE(best_device.is_cuda());
    return;
  }
  const auto ranks = one_rank();
  EXPECT_ERROR(ConfigError, ranks->compute_on(at::Device(at::kCUDA, 0), "gpu"), why_no_nccl(),
               "train.device=cpu");
}

TEST_F(Nccl, EveryExchangeOfOneRankGivesTheNumbersOfTheSingleProcess) {
  if (!why_no_nccl().empty()) {
    std::cout << "not run: " << why_no_nccl() << "\n";
    return;
  }
  const auto ranks = one_rank();
  int calls = 0;
  ranks->compute_on(best_device, "gpu", [&](const DeviceExchangePlace& place) {
    return std::make_unique<Counted>(nccl_exchange(place), calls);
  });
  EXPECT_EQ(calls, 2) << "the test at the start";
  for (const at::ScalarType dtype :
       {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong}) {
    const at::TensorOptions options = at::TensorOptions(at::kDouble).device(best_device);
    const at::Tensor numbers[] = {at::arange(3000, options).view({30, 100}).to(dtype),
                                  at::arange(35, options).view({5, 7}).to(dtype).t(),
                                  at::full({}, 3.0, options).to(dtype)};
    for (Communicator* const some : {static_cast<Communicator*>(ranks.get()), &alone()}) {
      std::vector<at::Tensor> summed, copied;
      for (const at::Tensor& tensor : numbers) {
        summed.push_back(tensor.clone());
        copied.push_back(tensor.clone());
      }
      const at::Tensor large = at::ones({6'000'000}, options.dtype(dtype));
      const at::Tensor rows = numbers[0].reshape({1, 3000}).clone();
      some->sum(summed);
      some->sum(std::span(&large, 1));
      some->broadcast(copied, 0);
      // Not by ring_gather(), which leaves one rank's rows as they are.
      if (auto* const ring = dynamic_cast<RingGather*>(some)) ring->ring_gather(rows);
      for (size_t n = 0; n < summed.size(); ++n) {
        EXPECT_TRUE(summed[n].equal(numbers[n])) << dtype << " " << n;
        EXPECT_TRUE(copied[n].equal(numbers[n])) << dtype << " " << n;
      }
      EXPECT_TRUE(large.equal(at::ones_like(large))) << dtype;
      EXPECT_TRUE(rows.equal(numbers[0].reshape({1, 3000}))) << dtype;
      EXPECT_EQ(some->sum(2.5), 2.5);
      EXPECT_EQ(some->max(-1.0), -1.0);
      some->barrier();
    }
  }
  EXPECT_EQ(calls, 2 + 5 * 4) << "a format's small tensors, its large one, copies, rows";
}

TEST_F(Nccl, AnExchangeOnASideStreamWaitsForItsNumbersAndIsWaitedFor) {
  if (!why_no_nccl().empty()) {
    std::cout << "not run: " << why_no_nccl() << "\n";
    return;
  }
  const auto ranks = one_rank();
  ranks->compute_on(best_device, "gpu");
  const SideStream side(best_device);
  const at::Tensor factor = at::full({1024, 1024}, 1.0 / 1024, best_device);
  for (int round = 0; round < 5; ++round) {
    at::Tensor slow = at::ones({1024, 1024}, best_device);
    for (int n = 0; n < 100; ++n) slow = at::matmul(slow, factor);
    const StreamPoint computed(best_device);
    StreamPoint summed;
    {
      const SideStream::Scope scope(side);
      computed.wait();
      ranks->sum(std::span(&slow, 1));
      slow.add_(1.0);
      summed = StreamPoint(best_device);
    }
    summed.wait();
    EXPECT_TRUE(slow.allclose(at::full_like(slow, 2.0), 1e-3)) << "round " << round;
  }
}

}  // namespace
}  // namespace fovea::nccl_test
