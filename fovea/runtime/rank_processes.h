// Ranks as child processes on this machine: `--processes N`.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace fovea {

/// How the processes ended.
struct RanksEnd {
  int exit_code = 0;
  /// The reason, where rank 0, which speaks to people, has not told it.
  std::string message;
};

/// Runs `command` as `count` processes and waits for all. Rank 0 has this process's stdout and
/// stderr. Each child computes with `threads` threads unless OMP_NUM_THREADS is set. One that fails
/// ends all: the others have 10 s to stop by themselves. A signal that sets `stop`
/// (runtime/interrupt.h) is passed on. The children end with this process. IoError where they
/// cannot be started.
RanksEnd run_rank_processes(int64_t count, const std::vector<std::string>& command, int64_t threads,
                            const std::atomic<bool>* stop);

}  // namespace fovea
