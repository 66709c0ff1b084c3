// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#undef _FORTIFY_SOURCE  // its inline variants of these functions would stand in the way
#include "tests/checkpoint/faulty_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>

namespace fovea::testing {
namespace {

Fault armed;
int calls = 0;

enum class Need { nothing, change, space };

/// The error with which this call must fail; 0 = it may act.
int disturb(Need need) {
  if (armed.kind == Fault::Kind::none) return 0;
  ++calls;
  switch (armed.kind) {
    case Fault::Kind::kill:
      if (calls == armed.at) ::kill(::getpid(), SIGKILL);
      return 0;
    case Fault::Kind::error:
      return calls == armed.at ? armed.error : 0;
    case Fault::Kind::full:
      return calls >= armed.at && need == Need::space ? ENOSPC : 0;
    case Fault::Kind::read_only:
      return calls >= armed.at && need != Need::nothing ? EROFS : 0;
    default:
      return 0;
  }
}

/// How much of a read or write of `size` bytes is done; 0 = it fails with EINTR.
size_t shortened(size_t size) {
  if (armed.kind != Fault::Kind::short_calls || size == 0) return size;
  return calls % 3 == 0 ? 0 : (size + 1) / 2;
}

template <class... Arguments>
long call(Need need, long number, Arguments... arguments) {
  if (const int error = disturb(need); error != 0) {
    errno = error;
    return -1;
  }
  return ::syscall(number, arguments...);
}

template <class Data>
ssize_t transfer(Need need, long number, int file, Data data, size_t size) {
  if (const int error = disturb(need); error != 0) {
    errno = error;
    return -1;
  }
  const size_t now = shortened(size);
  if (now == 0 && size > 0) {
    errno = EINTR;
    return -1;
  }
  return ::syscall(number, file, data, now);
}

}  // namespace

void arm(const Fault& fault) {
  armed = fault;
  calls = 0;
}

int calls_made() { return calls; }

}  // namespace fovea::testing

using fovea::testing::Need;

extern "C" {

int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    va_list list;
    va_start(list, flags);
    mode = va_arg(list, mode_t);
    va_end(list);
  }
  const Need need = (flags & O_CREAT) != 0 ? Need::space : Need::nothing;
  return static_cast<int>(
      fovea::testing::call(need, SYS_openat, AT_FDCWD, path, flags, static_cast<long>(mode)));
}

ssize_t read(int file, void* data, size_t size) {
  return fovea::testing::transfer(Need::nothing, SYS_read, file, data, size);
}

ssize_t write(int file, const void* data, size_t size) {
  return fovea::testing::transfer(Need::space, SYS_write, file, data, size);
}

int fsync(int file) { return static_cast<int>(fovea::testing::call(Need::space, SYS_fsync, file)); }

int rename(const char* from, const char* to) noexcept {
  return static_cast<int>(
      fovea::testing::call(Need::change, SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int mkdir(const char* path, mode_t mode) noexcept {
  return static_cast<int>(
      fovea::testing::call(Need::space, SYS_mkdirat, AT_FDCWD, path, static_cast<long>(mode)));
}

int unlink(const char* path) noexcept {
  return static_cast<int>(fovea::testing::call(Need::change, SYS_unlinkat, AT_FDCWD, path, 0));
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  return static_cast<int>(fovea::testing::call(Need::change, SYS_unlinkat, folder, path, flags));
}

int rmdir(const char* path) noexcept {
  return static_cast<int>(
      fovea::testing::call(Need::change, SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR));
}
}
