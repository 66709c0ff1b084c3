// How many threads find a core of their own beside other programs.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace fovea {

/// Work of the cores that this process may use, in seconds since some moment.
struct CoreTimes {
  double now = 0;
  double busy = 0;  ///< of all those cores, for all programs
  double own = 0;   ///< of this process
  int64_t cores = 0;
};

/// From /proc/stat; nothing where the system has none.
std::optional<CoreTimes> read_core_times();

/// Shares parallel work among no more threads than find a core of their own.
///
/// All threads of a team wait for the slowest one. Beside a program that keeps a core busy, a team
/// as large as the machine has half of every core at best. A team with one thread less loses that
/// core alone. The load is measured between steps of work, five times a second at most. A size
/// changes when two measurements in a row say so. For work whose results do not depend on the
/// number of threads: tokens are decoded so, training is not.
class FreeCores {
 public:
  using Source = std::function<std::optional<CoreTimes>()>;
  explicit FreeCores(Source source = read_core_times) : source_(std::move(source)) {}

  /// While it lives, OpenMP teams of this thread have at most so many threads.
  class Team {
   public:
    explicit Team(int threads);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

   private:
    int before_ = 0;  // 0: nothing to restore
  };
  /// The size of this thread's next team: call at the beginning of a step.
  int size();

  /// The size of a team that has `most` threads on a quiet machine.
  int64_t threads(int64_t most);

 private:
  Source source_;
  std::optional<CoreTimes> last_;
  double next_ = 0;  // moment of the next measurement
  int64_t cores_ = 0, free_ = 0, wanted_ = 0;
};

}  // namespace fovea
