// Ctrl-C and SIGTERM as a flag, so that a run can save before it leaves.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace fovea {

/// While it lives, the first SIGINT or SIGTERM sets flag(); a second one ends the process as usual.
/// One at a time a process.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  const std::atomic<bool>* flag() const;
};

/// The signal that set the flag of the newest guard (SIGINT, SIGTERM); 0 for none. Stays after the
/// guard's end.
int stop_signal();

}  // namespace fovea
