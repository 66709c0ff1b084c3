// Ranks as threads of one process: what a Communicator of several processes does, without a
// network.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/runtime/communicator.h"

namespace fovea::testing {

/// Where threads wait for each other; IoError for those who wait for one that has left.
class Meeting {
 public:
  explicit Meeting(int64_t members) : members_(members) {}

  void wait() {
    std::unique_lock lock(mutex_);
    const int64_t round = round_;
    if (++arrived_ == members_) {
      arrived_ = 0;
      ++round_;
      all_here_.notify_all();
    }
    all_here_.wait(lock, [&] { return round_ != round || left_; });
    require<IoError>(round_ != round, "ranks", "a rank has gone");
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    left_ = true;
    all_here_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  int64_t members_, arrived_ = 0, round_ = 0;
  bool left_ = false;
};

/// What ranks show each other between two meetings.
struct RankTable {
  explicit RankTable(int64_t ranks)
      : meeting(ranks), values(static_cast<size_t>(ranks)), tensors(values.size()) {}

  Meeting meeting;
  std::vector<std::span<double>> values;
  std::vector<std::span<const at::Tensor>> tensors;
};

/// Sums are taken in the order of ranks, so every run gives the same bits.
class ThreadRank final : public Communicator {
 public:
  ThreadRank(RankTable& table, int64_t rank) : table_(table), rank_(rank) {}
  using Communicator::max;
  using Communicator::sum;

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return std::ssize(table_.values); }

  void sum(std::span<double> values) override {
    combine(values, [](double a, double b) { return a + b; });
  }
  void max(std::span<double> values) override {
    combine(values, [](double a, double b) { return std::max(a, b); });
  }
  void sum(std::span<const at::Tensor> tensors) override {
    exchange(tensors, [&](size_t n) {
      at::Tensor total = table_.tensors[0][n].clone();
      for (size_t r = 1; r < table_.tensors.size(); ++r) total.add_(table_.tensors[r][n]);
      return total;
    });
  }
  void broadcast(std::span<const at::Tensor> tensors, int64_t from) override {
    exchange(tensors,
             [&](size_t n) { return table_.tensors[static_cast<size_t>(from)][n].clone(); });
  }
  void barrier() override { table_.meeting.wait(); }

 private:
  template <class F>
  void combine(std::span<double> values, const F& join) {
    table_.values[static_cast<size_t>(rank_)] = values;
    table_.meeting.wait();
    std::vector<double> joined(table_.values[0].begin(), table_.values[0].end());
    for (size_t r = 1; r < table_.values.size(); ++r)
      for (size_t n = 0; n < joined.size(); ++n) joined[n] = join(joined[n], table_.values[r][n]);
    table_.meeting.wait();
    std::ranges::copy(joined, values.begin());
  }
  template <class F>
  void exchange(std::span<const at::Tensor> tensors, const F& result_of) {
    const at::NoGradGuard no_grad;
    table_.tensors[static_cast<size_t>(rank_)] = tensors;
    table_.meeting.wait();
    std::vector<at::Tensor> results;
    for (size_t n = 0; n < tensors.size(); ++n) results.push_back(result_of(n));
    table_.meeting.wait();
    for (size_t n = 0; n < tensors.size(); ++n) tensors[n].copy_(results[n]);
  }

  RankTable& table_;
  int64_t rank_;
};

/// body(ranks) on a thread a rank; rethrows what the first of them threw.
inline void run_ranks(int64_t count, const std::function<void(Communicator&)>& body) {
  RankTable table(count);
  std::vector<std::exception_ptr> thrown(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ThreadRank ranks(table, rank);
        body(ranks);
      } catch (...) {
        thrown[static_cast<size_t>(rank)] = std::current_exception();
        table.meeting.leave();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : thrown)
    if (error) std::rethrow_exception(error);
}

}  // namespace fovea::testing
