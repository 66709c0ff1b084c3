// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/interrupt.h"

#include <unistd.h>

#include <array>
#include <csignal>

namespace fovea {
namespace {

// A handler can reach only statics; lock-free, so it may be set inside one.
std::atomic<bool> stop_requested{false};
std::atomic<bool> asked_by_hand{false};  // by SIGINT or SIGTERM
std::atomic<int> signal_seen{0};
std::atomic<InterruptGuard::Reaction> at_first{nullptr}, when_late{nullptr};
static_assert(std::atomic<InterruptGuard::Reaction>::is_always_lock_free);
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

constexpr unsigned kPatienceSeconds = 1;
constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP};
std::array<struct sigaction, kSignals.size()> before;
struct sigaction alarm_before;

void leave_if_late(int) {
  if (const InterruptGuard::Reaction leave = when_late) leave();
}

void request_stop(int signal_number) {
  int none = 0;
  signal_seen.compare_exchange_strong(none, signal_number);
  if (!stop_requested.exchange(true)) {
    if (const InterruptGuard::Reaction notice = at_first) notice();
    if (when_late.load() != nullptr) ::alarm(kPatienceSeconds);
  }
  if (signal_number == SIGHUP) return;
  if (asked_by_hand.exchange(true)) {  // the second time: as if nobody had handled it
    std::signal(signal_number, SIG_DFL);
    std::raise(signal_number);
  }
}

}  // namespace

InterruptGuard::InterruptGuard(Reaction notice) {
  at_first = notice;
  when_late = nullptr;
  stop_requested = false;
  asked_by_hand = false;
  signal_seen = 0;
  struct sigaction action = {};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESTART;  // writes go on; the trainer looks at the flag after the step
  sigemptyset(&action.sa_mask);
  struct sigaction late = action;
  late.sa_handler = leave_if_late;
  sigaction(SIGALRM, &late, &alarm_before);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &before[i]);
    const bool nohup = kSignals[i] == SIGHUP && before[i].sa_handler == SIG_IGN;
    if (!nohup) sigaction(kSignals[i], &action, nullptr);
  }
}

InterruptGuard::~InterruptGuard() {
  ::alarm(0);
  sigaction(SIGALRM, &alarm_before, nullptr);
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before[i], nullptr);
  // A terminal that closes may send several: the ones that come late must not end the process.
  if (signal_seen == SIGHUP) std::signal(SIGHUP, SIG_IGN);
}

const std::atomic<bool>* InterruptGuard::flag() const { return &stop_requested; }

void InterruptGuard::leave_late(Reaction leave) {
  when_late = leave;
  if (leave != nullptr && stop_requested) ::alarm(kPatienceSeconds);
}

int stop_signal() { return signal_seen; }

}  // namespace fovea
