// The program with pipes: to its end, or while a test talks with it (program.h has files instead).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "fovea/base/files.h"
#include "tests/support/temporary_folder.h"

namespace fovea::testing {

/// A running process with pipes to its stdin and from its stdout; stderr goes to a file.
class PipedProgram {
 public:
  PipedProgram(const std::string& path, const std::vector<std::string>& arguments) {
    int in[2], out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0)
      throw std::runtime_error("pipe");
    std::vector<char*> argv{const_cast<char*>(path.c_str())};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    // With this set the program does not start itself again (cli/thread_waiting.h): half the time.
    ::setenv("OMP_WAIT_POLICY", "passive", 0);
    const std::string errors = (folder_ / "stderr").string();
    id_ = ::fork();
    if (id_ == 0) {
      ::dup2(in[0], STDIN_FILENO);
      ::dup2(out[1], STDOUT_FILENO);
      ::dup2(::open(errors.c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
      ::execv(path.c_str(), argv.data());
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    in_ = in[1];
    out_ = out[0];
  }
  ~PipedProgram() {
    if (id_ > 0) {
      ::kill(id_, SIGKILL);
      wait();
    }
  }
  PipedProgram(const PipedProgram&) = delete;
  PipedProgram& operator=(const PipedProgram&) = delete;

  void write(std::string_view text) {
    while (!text.empty()) {
      const ssize_t count = ::write(in_, text.data(), text.size());
      if (count <= 0) return;  // it has gone; its exit code tells
      text.remove_prefix(static_cast<size_t>(count));
    }
  }
  void close_input() {
    if (in_ >= 0) ::close(in_);
    in_ = -1;
  }
  /// What comes until `bytes` have come, or the end.
  std::string read(size_t bytes = static_cast<size_t>(-1)) {
    std::string text;
    char buffer[4096];
    while (text.size() < bytes) {
      const ssize_t count = ::read(out_, buffer, sizeof buffer);
      if (count <= 0) break;
      text.append(buffer, static_cast<size_t>(count));
    }
    return text;
  }
  void signal(int number) { ::kill(id_, number); }
  /// The exit code, or 128 + signal.
  int wait() {
    close_input();
    int status = 0;
    ::waitpid(id_, &status, 0);
    id_ = -1;
    ::close(out_);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string errors() const { return read_file(folder_ / "stderr"); }

 private:
  TemporaryFolder folder_;
  pid_t id_ = -1;
  int in_ = -1, out_ = -1;
};

struct PipedResult {
  int exit_code = 0;
  std::string out, err;
};

/// Runs to the end. `input` must be small enough for a pipe (64 KiB).
inline PipedResult run_piped(const std::string& path, const std::vector<std::string>& arguments,
                             std::string_view input = "") {
  PipedProgram program(path, arguments);
  program.write(input);
  program.close_input();
  PipedResult result;
  result.out = program.read();
  result.exit_code = program.wait();
  result.err = program.errors();
  return result;
}

}  // namespace fovea::testing
