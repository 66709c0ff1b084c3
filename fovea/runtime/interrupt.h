// Ctrl-C, SIGTERM and SIGHUP as a flag, so that a run can save before it leaves.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace fovea {

/// While it lives, the first SIGINT, SIGTERM or SIGHUP sets flag(). A second SIGINT or SIGTERM ends
/// the process as usual; SIGHUP never does, because a terminal that closes sends several. A SIGHUP
/// that was ignored before (nohup) stays ignored. One at a time a process.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  const std::atomic<bool>* flag() const;
};

/// The signal that set the flag of the newest guard; 0 for none. Stays after the guard's end.
int stop_signal();

}  // namespace fovea
