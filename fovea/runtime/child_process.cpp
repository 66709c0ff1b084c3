// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "fovea/base/error.h"
#include "fovea/runtime/spawn.h"

namespace fovea {
namespace {

constexpr size_t kErrorKept = 4096;  // bytes of stderr

struct Pipe {
  int read = -1, write = -1;

  Pipe() {
    int ends[2];
    require<IoError>(::pipe2(ends, O_CLOEXEC) == 0, "process", "cannot make a pipe: {}",
                     std::strerror(errno));
    read = ends[0], write = ends[1];
  }
  ~Pipe() {
    if (read >= 0) ::close(read);
    if (write >= 0) ::close(write);
  }
  int take_read() { return std::exchange(read, -1); }
  int take_write() { return std::exchange(write, -1); }
};

void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(descriptor, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return;  // it has ended already; wait() tells
    text.remove_prefix(static_cast<size_t>(count));
  }
}

/// Appends what there is; false at its end.
bool drain(int descriptor, std::string& text) {
  std::array<char, 4096> bytes;
  for (;;) {
    const ssize_t count = ::read(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno == EAGAIN;
    if (count == 0) return false;
    text.append(bytes.data(), static_cast<size_t>(count));
  }
}

std::string last_line(std::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  return std::string(text.substr(text.rfind('\n') + 1));  // npos + 1 is 0
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& arguments, std::string_view input,
                           Input ends) {
  Pipe in, out, err;
  pid_ = spawn("process", {.arguments = arguments,
                           .in = in.read,
                           .out = out.write,
                           .err = err.write,
                           .own_group = true});
  ::close(std::exchange(in.read, -1));  // a child that ends leaves no reader
  write_all(in.write, input);
  if (ends == Input::goes_on) in_ = in.take_write();
  for (const int end : {out.read, err.read}) ::fcntl(end, F_SETFL, O_NONBLOCK);
  out_ = out.take_read();
  err_ = err.take_read();
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      in_(std::exchange(other.in_, -1)),
      out_(std::exchange(other.out_, -1)),
      err_(std::exchange(other.err_, -1)),
      line_(std::move(other.line_)),
      error_(std::move(other.error_)) {}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    signal(SIGKILL);
    wait();
  }
  end_input();
  if (out_ >= 0) ::close(out_);
  if (err_ >= 0) ::close(err_);
}

void ChildProcess::write(std::string_view input) const {
  if (in_ >= 0) write_all(in_, input);
}

void ChildProcess::end_input() {
  if (in_ >= 0) ::close(std::exchange(in_, -1));
}

bool ChildProcess::read(const std::function<void(std::string_view)>& line) {
  const bool out_open = drain(out_, line_), err_open = drain(err_, error_);
  size_t begin = 0;
  for (size_t end; (end = line_.find('\n', begin)) != std::string::npos; begin = end + 1)
    line(std::string_view(line_).substr(begin, end - begin));
  line_.erase(0, begin);
  if (error_.size() > kErrorKept) error_.erase(0, error_.size() - kErrorKept);
  return out_open && err_open;
}

void ChildProcess::signal(int number) const {
  if (pid_ > 0) ::kill(pid_, number);
}

std::string ChildProcess::wait() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) continue;
  pid_ = -1;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  const std::string how = WIFSIGNALED(status) ? fmt::format("killed by signal {}", WTERMSIG(status))
                                              : fmt::format("exit code {}", WEXITSTATUS(status));
  const std::string why = last_line(error_);
  return why.empty() ? how : fmt::format("{}: {}", how, why);
}

void ChildProcess::wait_for_any(std::span<ChildProcess* const> children, int milliseconds) {
  std::vector<pollfd> ends;
  for (const ChildProcess* child : children)
    for (const int end : {child->out_, child->err_})
      ends.push_back({.fd = end, .events = POLLIN, .revents = 0});
  ::poll(ends.data(), ends.size(), milliseconds);  // a signal ends it too
}

void end_with_parent(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::raise(SIGKILL);  // it had ended before
}

}  // namespace fovea
