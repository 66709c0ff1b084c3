// The child process of gnuplot: script on its standard input, SVG from its standard output, a time
// limit.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/gnuplot.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "fovea/base/error.h"
#include "fovea/report/format.h"

extern char** environ;

namespace fovea {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Descriptor() { close(); }
  void close() {
    if (value_ >= 0) ::close(std::exchange(value_, -1));
  }
  int get() const { return value_; }

 private:
  int value_;
};

struct Pipe {
  Descriptor read, write;
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    fail<IoError>("gnuplot", "cannot make a pipe: {}", std::strerror(errno));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// The script as a file in memory. A pipe would need a second loop, and raises SIGPIPE where
/// gnuplot ends early.
Descriptor script_file(std::string_view script) {
  Descriptor file(::memfd_create("fovea-gnuplot", MFD_CLOEXEC));
  while (file.get() >= 0 && !script.empty()) {
    const ssize_t written = ::write(file.get(), script.data(), script.size());
    if (written < 0) break;
    script.remove_prefix(static_cast<size_t>(written));
  }
  if (file.get() < 0 || !script.empty() || ::lseek(file.get(), 0, SEEK_SET) != 0) {
    fail<IoError>("gnuplot", "cannot hold the script in memory: {}", std::strerror(errno));
  }
  return file;
}

pid_t start(const std::string& program, int input, int output, int errors) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, errors, STDERR_FILENO);
  // -d: the user's own start-up file must not change our charts. "-": read standard input.
  std::string name = program, defaults = "-d", dash = "-";
  char* arguments[] = {name.data(), defaults.data(), dash.data(), nullptr};
  pid_t child = -1;
  const int error = ::posix_spawnp(&child, program.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT) {
    fail<UnsupportedError>(
        "gnuplot",
        "expected the program '{}' for charts; it is not installed: apt-get install gnuplot-nox",
        program);
  }
  if (error != 0) fail<IoError>("gnuplot", "cannot start '{}': {}", program, std::strerror(error));
  return child;
}

/// Reads both pipes to their ends; false where the time is up first.
bool drain(const Descriptor& output, const Descriptor& errors, double timeout_seconds,
           std::string& text, std::string& complaint) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_seconds);
  pollfd pipes[] = {{output.get(), POLLIN, 0}, {errors.get(), POLLIN, 0}};
  std::string* const sinks[] = {&text, &complaint};
  int open_pipes = 2;
  while (open_pipes > 0) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    if (::poll(pipes, 2, static_cast<int>(left)) < 0 && errno != EINTR) return false;
    for (int i = 0; i < 2; ++i) {
      if (pipes[i].fd < 0 || pipes[i].revents == 0) continue;
      char buffer[65536];
      const ssize_t count = ::read(pipes[i].fd, buffer, sizeof buffer);
      if (count > 0) {
        sinks[i]->append(buffer, static_cast<size_t>(count));
      } else if (count == 0 || errno != EINTR) {
        pipes[i].fd = -1;  // poll passes over it
        --open_pipes;
      }
    }
  }
  return true;
}

int wait_for(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace

std::string GnuplotRunner::run(std::string_view script) const {
  const Descriptor input = script_file(script);
  Pipe output = make_pipe(), errors = make_pipe();
  const pid_t child = start(program, input.get(), output.write.get(), errors.write.get());
  output.write.close();
  errors.write.close();
  std::string text, complaint;
  const bool complete = drain(output.read, errors.read, timeout_seconds, text, complaint);
  if (!complete) ::kill(child, SIGKILL);
  const int status = wait_for(child);
  if (!complete) {
    fail<IoError>("gnuplot", "expected '{}' to draw a chart within {} s; it was stopped", program,
                  timeout_seconds);
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    const std::string said = shorten(single_line(complaint), 400);
    fail<IoError>("gnuplot", "expected '{}' to draw a chart; it failed: {}", program,
                  said.empty() ? "no message" : said);
  }
  return text;
}

std::string GnuplotRunner::svg(const GnuplotChart& chart) const {
  // `dynamic` writes a viewBox without a size, so that the page decides how large the chart is.
  const std::string terminal = fmt::format(
      "set terminal svg size {},{} dynamic noenhanced font \"sans-serif,12\" background rgb "
      "\"{}\"\n"
      "set encoding utf8\n",
      chart.width, chart.height, color_code(ChartColor::kSurface));
  return clean_svg(run(terminal + chart.script), chart);
}

}  // namespace fovea
