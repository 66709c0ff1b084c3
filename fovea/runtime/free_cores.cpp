// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/free_cores.h"

#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

namespace fovea {
namespace {

constexpr double kInterval = 0.2;  // seconds

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Cores that others use beyond this cost more than a thread less. The clock of /proc/stat tells
// tenths of a core; two threads lose half of their speed without one of them.
double tolerated(int64_t most) { return std::max(0.3, 0.85 / static_cast<double>(most)); }

}  // namespace

std::optional<CoreTimes> read_core_times() {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return std::nullopt;
  std::ifstream file("/proc/stat");
  CoreTimes times;
  const double tick = 1.0 / static_cast<double>(::sysconf(_SC_CLK_TCK));
  for (std::string line; std::getline(file, line) && line.starts_with("cpu");) {
    std::istringstream fields(line.substr(3));
    int64_t core = 0;
    double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, hard = 0, soft = 0;
    if (line[3] == ' ' ||
        !(fields >> core >> user >> nice >> system >> idle >> waiting >> hard >> soft))
      continue;
    if (core >= CPU_SETSIZE || !CPU_ISSET(static_cast<size_t>(core), &allowed)) continue;
    times.busy += (user + nice + system + hard + soft) * tick;
    ++times.cores;
  }
  timespec own{};
  if (times.cores == 0 || ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own) != 0) return std::nullopt;
  times.own = static_cast<double>(own.tv_sec) + 1e-9 * static_cast<double>(own.tv_nsec);
  times.now = seconds_now();
  return times;
}

FreeCores::Team::Team(int threads) {
  if (threads >= omp_get_max_threads()) return;
  before_ = omp_get_max_threads();
  omp_set_num_threads(threads);
}

FreeCores::Team::~Team() {
  if (before_ > 0) omp_set_num_threads(before_);
}

int FreeCores::size() { return static_cast<int>(threads(omp_get_max_threads())); }

int64_t FreeCores::threads(int64_t most) {
  if (most <= 1) return most;
  const std::optional<CoreTimes> times = seconds_now() >= next_ ? source_() : std::nullopt;
  if (!times) return cores_ == 0 ? most : std::clamp<int64_t>(free_, 1, most);
  next_ = times->now + kInterval;
  const std::optional<CoreTimes> before = std::exchange(last_, times);
  if (!before || times->cores != before->cores || times->now <= before->now) {
    cores_ = 0;
    return most;
  }
  const double passed = times->now - before->now;
  const double others =
      std::max(0.0, (times->busy - before->busy) - (times->own - before->own)) / passed;
  const auto now = times->cores - static_cast<int64_t>(std::ceil(others - tolerated(most)));
  if (cores_ == 0) cores_ = free_ = wanted_ = times->cores;
  if (std::exchange(wanted_, now) == now) free_ = now;
  return std::clamp<int64_t>(free_, 1, most);
}

}  // namespace fovea
