// A team of threads that walks through the loops of one function together.
//
// Threads are OpenMP's, the same that libtorch uses. Under the thread sanitizer they are
// std::thread: GCC's OpenMP library is not instrumented, so the sanitizer sees none of its barriers
// and reports every loop. It then checks our part: the memory that each thread reads and writes
// between barriers.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <omp.h>

#include <cstdint>

#if defined(__SANITIZE_THREAD__)
#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <thread>
#include <vector>
#endif

namespace fovea::kernels {

/// Whether the team meets at the end of a loop.
enum class Meet { yes, no };

#if defined(__SANITIZE_THREAD__)

class Team {
 public:
  Team(int64_t threads) : size_(threads), barrier_(threads) {}

  /// One thread of the team: loops are numbered as it meets them.
  class Member {
   public:
    Member(Team& team, int64_t index) : team_(team), index_(index) {}

    template <class F>
    void each(int64_t count, const F& work, Meet meet = Meet::yes) {
      const int64_t begin = count * index_ / team_.size_, end = count * (index_ + 1) / team_.size_;
      for (int64_t n = begin; n < end; ++n) work(n);
      if (meet == Meet::yes) team_.barrier_.arrive_and_wait();
    }

    template <class F>
    void each_in_turn(int64_t count, const F& work) {
      std::atomic<int64_t>& next = team_.next_.at(loop_++);
      for (int64_t n = next++; n < count; n = next++) work(n);
      team_.barrier_.arrive_and_wait();
    }

    /// This thread's number, below threads().
    int64_t index() const { return index_; }

   private:
    Team& team_;
    int64_t index_;
    size_t loop_ = 0;
  };

  /// The threads of run().
  static int64_t threads(bool parallel) { return parallel ? omp_get_max_threads() : 1; }

  template <class F>
  static void run(bool parallel, const F& body) {
    Team team(threads(parallel));
    std::vector<std::thread> others;
    for (int64_t n = 1; n < team.size_; ++n) {
      others.emplace_back([&team, &body, n] {
        Member member(team, n);
        body(member);
      });
    }
    Member first(team, 0);
    body(first);
    for (std::thread& other : others) other.join();
  }

 private:
  int64_t size_;
  std::barrier<> barrier_;
  std::array<std::atomic<int64_t>, 8> next_{};  // of the loops shared in turn
};

#else

class Team {
 public:
  class Member {
   public:
    /// `alone`: outside of OpenMP, whose barriers are calls of the system even for one thread.
    explicit Member(bool alone) : alone_(alone) {}

    /// work(0) ... work(count - 1) in equal contiguous slices.
    template <class F>
    void each(int64_t count, const F& work, Meet meet = Meet::yes) {
      if (alone_) return all(count, work);
#pragma omp for schedule(static) nowait
      for (int64_t n = 0; n < count; ++n) work(n);
      if (meet == Meet::yes) {
#pragma omp barrier
      }
    }

    /// The same in order, each by the thread that is free next: long work should come first.
    template <class F>
    void each_in_turn(int64_t count, const F& work) {
      if (alone_) return all(count, work);
#pragma omp for schedule(dynamic)
      for (int64_t n = 0; n < count; ++n) work(n);
    }

    bool alone() const { return alone_; }
    /// This thread's number, below threads().
    int64_t index() const { return alone_ ? 0 : omp_get_thread_num(); }

   private:
    template <class F>
    static void all(int64_t count, const F& work) {
      for (int64_t n = 0; n < count; ++n) work(n);
    }
    bool alone_;
  };

  /// The most threads of run().
  static int64_t threads(bool parallel) { return parallel ? omp_get_max_threads() : 1; }

  /// body(member) on every thread, or on this one alone. All threads must walk the same loops.
  template <class F>
  static void run(bool parallel, const F& body) {
    Member member(!parallel || omp_get_max_threads() == 1);
    if (member.alone()) return body(member);
#pragma omp parallel firstprivate(member)
    body(member);
  }
};

#endif

}  // namespace fovea::kernels
