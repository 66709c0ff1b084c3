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
  /// Runs inside a signal handler: it may write() and _exit(), nothing else.
  using Reaction = void (*)();

  /// `notice` runs at the first signal.
  explicit InterruptGuard(Reaction notice = nullptr);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  const std::atomic<bool>* flag() const;

  /// For work that looks at the flag seldom and has nothing to save: `leave` runs a second after
  /// the first signal if the guard still lives. nullptr: the work takes the time it needs.
  void leave_late(Reaction leave);
};

/// The signal that set the flag of the newest guard; 0 for none. Stays after the guard's end.
int stop_signal();

}  // namespace fovea
