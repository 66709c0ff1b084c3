// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/interrupt.h"

#include <csignal>

namespace fovea {
namespace {

// A handler can reach only statics; lock-free, so it may be set inside one.
std::atomic<bool> stop_requested{false};
std::atomic<int> signal_seen{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);
struct sigaction before_interrupt, before_terminate;

void request_stop(int signal_number) {
  signal_seen = signal_number;
  if (stop_requested.exchange(true)) {  // the second time: as if nobody had handled it
    std::signal(signal_number, SIG_DFL);
    std::raise(signal_number);
  }
}

}  // namespace

InterruptGuard::InterruptGuard() {
  stop_requested = false;
  signal_seen = 0;
  struct sigaction action = {};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESTART;  // writes go on; the trainer looks at the flag after the step
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &before_interrupt);
  sigaction(SIGTERM, &action, &before_terminate);
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &before_interrupt, nullptr);
  sigaction(SIGTERM, &before_terminate, nullptr);
}

const std::atomic<bool>* InterruptGuard::flag() const { return &stop_requested; }

int stop_signal() { return signal_seen; }

}  // namespace fovea
