// Gloo's sums between ranks that share nothing but a file (tests/cli/train_processes_test.cpp has
// processes; here each rank is a thread with connections of its own).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/gloo_communicator.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "fovea/runtime/ring_gather.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace fovea::gloo_communicator_test {
namespace {

using std::chrono::milliseconds;

constexpr RankTimes kShort{.meeting = milliseconds(20'000),
                           .exchange = milliseconds(20'000),
                           .sign_of_life = milliseconds(300)};

class GlooCommunicator : public ::testing::Test {
 protected:
  /// body(ranks) on a thread a rank; the message of the error of each, or "".
  std::vector<std::string> run(int64_t size, const std::function<void(Communicator&)>& body,
                               const RankTimes& times = kShort) {
    const std::string file = (folder_ / ("store" + std::to_string(++runs_))).string();
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
                                        times);
          body(*ranks);
        } catch (const Error& error) {
          errors[static_cast<size_t>(rank)] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
  }
  testing::TemporaryFolder folder_;
  int runs_ = 0;
};

const auto kNoErrors = ::testing::Each("");

TEST_F(GlooCommunicator, SumsMaximaAndCopiesAreThoseOfAllRanks) {
  EXPECT_THAT(run(3,
                  [](Communicator& ranks) {
                    const auto rank = static_cast<double>(ranks.rank());
                    double values[] = {rank, 1.0};
                    ranks.sum(values);
                    EXPECT_THAT(values, ::testing::ElementsAre(3.0, 3.0));
                    EXPECT_EQ(ranks.max(-rank), 0.0);
                    EXPECT_TRUE(ranks.any(rank == 1.0));
                    EXPECT_FALSE(ranks.any(false));
                    const at::Tensor rows = at::full({ranks.rank() + 1, 2}, rank);
                    EXPECT_TRUE(ranks.gather_rows(rows).select(1, 0).equal(
                        at::tensor({0., 1., 1., 2., 2., 2.})));
                    ranks.barrier();
                  }),
              kNoErrors);
}

// More than one bucket, two dtypes, a transposed view, an empty and a large tensor.
TEST_F(GlooCommunicator, TensorsOfAnyFormAreSummedAndSentInPlace) {
  const auto made = [](int64_t rank) {
    const at::Tensor base = at::arange(12, at::kFloat).view({3, 4}) + static_cast<double>(rank);
    return std::vector<at::Tensor>{base.t(),
                                   at::full({2}, rank, at::kLong),
                                   at::full({3}, 0.5 * static_cast<double>(rank), at::kDouble),
                                   at::empty({0}),
                                   at::ones({1'500'000}) * (rank + 1),
                                   at::ones({}) * rank};
  };
  EXPECT_THAT(run(2,
                  [&](Communicator& ranks) {
                    const auto all = made(ranks.rank()), first = made(0), second = made(1);
                    ranks.sum(all);
                    for (size_t n = 0; n < all.size(); ++n)
                      EXPECT_TRUE(all[n].equal(first[n] + second[n])) << n;
                    ranks.broadcast(made(ranks.rank()), 0);
                    const auto copies = made(ranks.rank());
                    ranks.broadcast(copies, 1);
                    for (size_t n = 0; n < all.size(); ++n)
                      EXPECT_TRUE(copies[n].equal(second[n])) << n;
                  }),
              kNoErrors);
}

// Less than a bucket, and several with a rest.
TEST_F(GlooCommunicator, ARingGathersTheRowOfEveryRank) {
  for (const int64_t length : {1, 700'001}) {
    EXPECT_THAT(run(3,
                    [&](Communicator& ranks) {
                      const at::Tensor rows = at::zeros({3, length});
                      rows[ranks.rank()].copy_(at::arange(length) + ranks.rank());
                      ring_gather(rows, ranks);
                      for (int64_t rank = 0; rank < 3; ++rank)
                        EXPECT_TRUE(rows[rank].equal(at::arange(length, at::kFloat) + rank));
                    }),
                kNoErrors);
  }
}

TEST_F(GlooCommunicator, EveryRankAndEveryRunHaveTheSameBits) {
  const auto sum = [&] {
    std::vector<at::Tensor> sums(3);
    EXPECT_THAT(run(3,
                    [&](Communicator& ranks) {
                      const at::Tensor numbers = at::sin(at::arange(5000, at::kFloat) *
                                                         (3.0 + static_cast<double>(ranks.rank())));
                      sums[static_cast<size_t>(ranks.rank())] = ranks.sum(numbers);
                    }),
                kNoErrors);
    EXPECT_TRUE(sums[0].equal(sums[1]) && sums[0].equal(sums[2]));
    return sums[0];
  };
  EXPECT_TRUE(sum().equal(sum()));
}

TEST_F(GlooCommunicator, ADifferenceBetweenRanksIsSeenOnAll) {
  EXPECT_THAT(run(3,
                  [](Communicator& ranks) {
                    EXPECT_TRUE(same_on_all(ranks, "recipe"));
                    EXPECT_FALSE(same_on_all(ranks, ranks.rank() == 2 ? "another" : "recipe"));
                  }),
              kNoErrors);
}

TEST_F(GlooCommunicator, ARankThatLeavesIsNamedByAllOthers) {
  const auto errors = run(3, [](Communicator& ranks) {
    ranks.barrier();
    if (ranks.rank() == 1) return;
    for (int n = 0; n < 3; ++n) ranks.barrier();
  });
  EXPECT_EQ(errors[1], "");
  for (const size_t rank : {0, 2}) {
    EXPECT_THAT(errors[rank], ::testing::HasSubstr("rank 1 of 3 has died or hangs"));
    EXPECT_THAT(errors[rank], ::testing::HasSubstr("the same command goes on"));
  }
}

TEST_F(GlooCommunicator, ARankThatStaysBehindIsNamedAfterTheTimeOut) {
  const RankTimes times{.meeting = milliseconds(20'000),
                        .exchange = milliseconds(1500),
                        .sign_of_life = milliseconds(300)};
  const auto errors = run(
      2,
      [](Communicator& ranks) {
        ranks.barrier();
        if (ranks.rank() == 0) std::this_thread::sleep_for(milliseconds(3500));
        ranks.barrier();
      },
      times);
  EXPECT_THAT(errors[1], ::testing::HasSubstr("rank 0 of 2 lives, but stays behind"));
  EXPECT_THAT(errors[0], ::testing::HasSubstr("rank 0 stopped"));
}

TEST_F(GlooCommunicator, ARankThatNeverComesIsNamed) {
  const RankPlace place{.launcher = RankPlace::Launcher::processes,
                        .rank = 1,
                        .size = 3,
                        .one_machine = true,
                        .file = (folder_ / "lonely").string()};
  EXPECT_ERROR(LostRankError, join_ranks(place, {.meeting = milliseconds(200)}),
               "ranks 0, 2 of 3 did not come");
  EXPECT_EQ(LostRankError("").exit_code(), 75);
}

TEST_F(GlooCommunicator, AnAddressWhereNobodyServesIsNamed) {
  const RankPlace place{.launcher = RankPlace::Launcher::torchrun,
                        .rank = 1,
                        .size = 2,
                        .address = "127.0.0.1",
                        .port = 1};
  EXPECT_ERROR(LostRankError, join_ranks(place, {.meeting = milliseconds(1200)}), "127.0.0.1:1",
               "MASTER_ADDR and MASTER_PORT");
}

}  // namespace
}  // namespace fovea::gloo_communicator_test
