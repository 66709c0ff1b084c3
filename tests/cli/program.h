// The program itself as a child process: arguments in; exit code, stdout and stderr out.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace fovea::testing {

struct Finished {
  int code = -1;  ///< exit code; 128 + signal for a killed one
  std::string out, err;
};

inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline void spill(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// A text that a small model can learn.
inline std::string numbered_lines() {
  std::string text;
  for (int i = 0; i < 2000; ++i)
    text += "line " + std::to_string(i) + " of a text that nobody wrote, but all can read\n";
  return text;
}

/// A started program; its streams go to files in `folder`.
class Program {
 public:
  Program(const std::filesystem::path& folder, const std::string& binary,
          const std::vector<std::string>& arguments, const std::string& out_path = "")
      : out_(out_path.empty() ? (folder / "stdout.txt").string() : out_path),
        err_((folder / "stderr.txt").string()) {
    std::vector<char*> argv{const_cast<char*>(binary.c_str())};
    for (const std::string& argument : arguments)
      argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("fork failed");
    if (pid_ > 0) return;
    const int in = open("/dev/null", O_RDONLY);
    const int out = open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    const int err = open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(126);
    setenv("OMP_NUM_THREADS", "1", 1);
    if (chdir(folder.c_str()) != 0) _exit(126);
    execv(binary.c_str(), argv.data());
    _exit(127);
  }

  void signal(int number) const { kill(pid_, number); }

  /// The processes that it has started.
  std::vector<pid_t> children() const {
    std::ifstream list(fmt::format("/proc/{0}/task/{0}/children", pid_));
    return {std::istream_iterator<pid_t>(list), {}};
  }

  bool running() {
    if (done_) return false;
    done_ = waitpid(pid_, &status_, WNOHANG) == pid_;
    return !done_;
  }

  /// Waits until `condition` holds or the program ends; whether it holds.
  bool until(const std::function<bool()>& condition) {
    while (!condition()) {
      if (!running()) return condition();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  Finished finish() {
    if (!done_) waitpid(pid_, &status_, 0);
    done_ = true;
    const int code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
    return {code, std::filesystem::is_regular_file(out_) ? slurp(out_) : "", slurp(err_)};
  }

 private:
  std::string out_, err_;
  pid_t pid_ = -1;
  int status_ = 0;
  bool done_ = false;
};

}  // namespace fovea::testing
