// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/interruption.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <string_view>

namespace fovea::cli {
namespace {

// A handler reaches only statics, and makes no text.
std::string& last_words() {
  static std::string text;
  return text;
}
bool goes_on_later = false;

void write_in_handler(std::string_view text) {
  // What stderr does not take is lost: there is nobody to tell.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

void leave() {
  write_in_handler(last_words());
  ::_exit(goes_on_later && stop_signal() != SIGINT ? 0 : 130);
}

}  // namespace

void say_that_it_stops() {
  write_in_handler(
      "\nfovea: stopping: what runs now is ended and saved first; a second Ctrl-C or SIGTERM ends "
      "it at once\n");
}

void leave_within_a_second(InterruptGuard& guard, const Globals& globals, const std::string& text,
                           bool resumes) {
  const char* const json = globals.json ? "{\"error\": \"Interrupted\", \"exit_code\": 130}\n" : "";
  guard.leave_late(nullptr);  // no handler reads the text while it changes
  last_words() = fmt::format("\n{}{}{}\n", json, error_prefix(), text);
  goes_on_later = resumes;
  guard.leave_late(leave);
}

}  // namespace fovea::cli
