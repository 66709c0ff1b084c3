// A program started as a child: text in, lines out.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

/// Runs in a process group of its own, so that Ctrl-C at a terminal reaches the parent alone, which
/// decides. The destructor kills a child that still runs, and waits for it.
class ChildProcess {
 public:
  enum class Input { whole, goes_on };

  /// Starts `arguments[0]` and writes `input` to its stdin, which ends there, or goes on with
  /// write(). IoError.
  ChildProcess(const std::vector<std::string>& arguments, std::string_view input,
               Input ends = Input::whole);
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// More of an input that goes on. Waits for a child that reads nothing; nothing happens where it
  /// has ended.
  void write(std::string_view input) const;
  void end_input();
  /// Takes what the child has written: each whole line of stdout goes to `line`; the end of stderr
  /// is kept. Returns whether both are still open.
  bool read(const std::function<void(std::string_view)>& line);
  /// Sends a signal.
  void signal(int number) const;
  pid_t id() const { return pid_; }
  /// The end of its stderr, as far as read().
  const std::string& errors() const { return error_; }
  /// Waits for the end: "" for exit code 0, else how it ended and the last line of its stderr.
  std::string wait();

  /// Sleeps until one of them has written or ended, at most so long.
  static void wait_for_any(std::span<ChildProcess* const> children, int milliseconds);

 private:
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1, err_ = -1;
  std::string line_, error_;  // not yet whole; the end of stderr
};

/// For a child at its start: it ends when process `parent`, which started it, does, however that
/// ends.
void end_with_parent(pid_t parent);

}  // namespace fovea
