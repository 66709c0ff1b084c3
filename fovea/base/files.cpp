// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/base/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "fovea/base/error.h"
#include "fovea/base/paths.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_io(const char* what, const fs::path& path, int error) {
  fail<IoError>("file", "cannot {} '{}': {}; {}", what, path.string(), std::strerror(error),
                remedy_of(error));
}

// Unique per process and call, so that two writers of one path each finish theirs; the last rename
// stays.
fs::path temporary_beside(const fs::path& path) {
  static std::atomic<int> calls{0};
  return path.parent_path() /
         fmt::format(".{}.tmp-{}-{}", path.filename().string(), getpid(), calls++);
}

/// The path that a rename may replace: a regular file or nothing; of a link to a regular file, that
/// file. A rename onto a device, a pipe or a link would put a file in its place.
fs::path replaceable(const fs::path& path) {
  std::error_code error;
  const fs::file_status there = fs::symlink_status(path, error);
  if (!fs::exists(there) || fs::is_regular_file(there)) return path;
  if (fs::is_regular_file(path, error)) return fs::canonical(path);
  const char* const what = fs::is_directory(path, error) ? "a folder"
                           : fs::exists(path, error)     ? "a device, a pipe or a socket"
                                                         : "a link to nothing";
  fail<IoError>("file", "cannot write '{}': expected a regular file or a free name; it is {}",
                path.string(), what);
}

void sync_tree(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const int flags = entry.is_directory() ? O_RDONLY | O_DIRECTORY : O_RDONLY;
    const int fd = ::open(entry.path().c_str(), flags | O_CLOEXEC);
    if (fd < 0) fail_io("sync", entry.path(), errno);
    const int result = ::fsync(fd);
    const int error = errno;
    ::close(fd);
    if (result != 0) fail_io("sync", entry.path(), error);
  }
  sync_folder(folder);
}

}  // namespace

std::string read_descriptor(int descriptor, const std::string& name, const ReadLimit& limit) {
  std::string bytes;
  struct stat info {};
  const auto refuse_beyond = [&](uint64_t size) {
    require<InputError>(size <= limit.bytes, "file",
                        "'{}' has more than the {} MB that {} may have; check the path", name,
                        limit.bytes >> 20, limit.what);
  };
  if (::fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode)) {
    refuse_beyond(static_cast<uint64_t>(info.st_size));
    bytes.reserve(static_cast<size_t>(info.st_size));
  }
  char buffer[1 << 16];
  for (;;) {
    const ssize_t count = ::read(descriptor, buffer, sizeof buffer);
    if (count == 0) return bytes;
    if (count > 0) {
      bytes.append(buffer, static_cast<size_t>(count));
      refuse_beyond(bytes.size());
    } else if (errno != EINTR) {
      fail<InputError>("file", "cannot read '{}': {}; {}", name, std::strerror(errno),
                       remedy_of(errno));
    }
  }
}

std::string read_file(const fs::path& path) { return read_file(path, kLargestText); }

std::string read_file(const fs::path& path, const ReadLimit& limit) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    fail<InputError>("file", "cannot read '{}': {}; {}", path.string(), std::strerror(errno),
                     remedy_of(errno));
  }
  try {
    std::string bytes = read_descriptor(fd, path.string(), limit);
    ::close(fd);
    return bytes;
  } catch (...) {
    ::close(fd);
    throw;
  }
}

OutputFile::OutputFile(const fs::path& path, Mode mode) : path_(path) {
  const int how = mode == Mode::append ? O_APPEND : O_TRUNC;
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | how, 0644);
  if (descriptor_ < 0) fail_io("write", path, errno);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_io("write", path_, errno);
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

void OutputFile::write(std::span<const std::byte> bytes) {
  write(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

void OutputFile::sync() {
  if (::fsync(descriptor_) != 0) fail_io("sync", path_, errno);
}

void OutputFile::close() {
  const int fd = std::exchange(descriptor_, -1);
  if (fd >= 0 && ::close(fd) != 0) fail_io("close", path_, errno);
}

void write_file(const fs::path& path, std::string_view bytes) {
  write_file(path, [&](OutputFile& file) { file.write(bytes); });
}

void write_file(const fs::path& given, const std::function<void(OutputFile&)>& fill) {
  const fs::path path = replaceable(given);
  const fs::path temporary = temporary_beside(path);
  try {
    OutputFile file(temporary);
    fill(file);
    file.sync();
    file.close();
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail_io("rename to", path, errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_folder(path.parent_path());
}

void write_folder(const fs::path& path, const std::function<void(const fs::path&)>& fill) {
  const fs::path temporary = temporary_beside(path);
  std::error_code ignored;
  fs::remove_all(temporary, ignored);
  make_folders(temporary);
  try {
    fill(temporary);
    sync_tree(temporary);
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail_io("rename to", path, errno);
  } catch (...) {
    fs::remove_all(temporary, ignored);
    throw;
  }
  sync_folder(path.parent_path());
}

void sync_folder(const fs::path& folder) {
  const fs::path real = folder.empty() ? fs::path(".") : folder;
  const int fd = ::open(real.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail_io("open folder", real, errno);
  const int result = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  // Some file systems (FUSE, network) cannot sync folders and say EINVAL; the rename itself
  // succeeded.
  if (result != 0 && error != EINVAL) fail_io("sync folder", real, error);
}

void make_folders(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail_io("create folder", path, error.value());
}

MappedFile::MappedFile(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    fail<InputError>("file", "cannot read '{}': {}; {}", path.string(), std::strerror(errno),
                     remedy_of(errno));
  }
  struct stat info {};
  const bool regular = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  if (!regular) {
    ::close(fd);
    fail<InputError>("file", "'{}' is not a regular file; check the path", path.string());
  }
  const size_t size = static_cast<size_t>(info.st_size);
  if (size > 0) {
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    const int error = errno;
    ::close(fd);
    if (data == MAP_FAILED) fail_io("map", path, error);
    bytes_ = {static_cast<const std::byte*>(data), size};
  } else {
    ::close(fd);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

FolderLock::FolderLock(const fs::path& folder) {
  const fs::path path = folder / ".lock";
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (descriptor_ < 0) fail_io("lock", path, errno);
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    char holder[32] = {};
    const ssize_t count = ::pread(descriptor_, holder, sizeof holder - 1, 0);
    ::close(std::exchange(descriptor_, -1));
    if (error != EWOULDBLOCK) fail_io("lock", path, error);
    fail<LockedError>(
        "run folder",
        "'{}' is in use by process {}; wait for it, stop it, or choose another run folder",
        folder.string(), count > 0 ? holder : "unknown");
  }
  const std::string pid = std::to_string(getpid());
  if (::ftruncate(descriptor_, 0) != 0 || ::pwrite(descriptor_, pid.data(), pid.size(), 0) < 0) {
    const int error = errno;
    ::close(std::exchange(descriptor_, -1));
    fail_io("write", path, error);
  }
}

FolderLock::FolderLock(FolderLock&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)) {}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

uint64_t fingerprint(std::string_view bytes, uint64_t seed) {
  // FNV-1a over 8-byte words with a multiply-xorshift finish: about 4 GB/s, stable across machines.
  uint64_t hash = 0xcbf29ce484222325ull ^ (seed * 0x9E3779B97F4A7C15ull) ^ bytes.size();
  while (!bytes.empty()) {
    uint64_t word = 0;
    const size_t count = bytes.size() < 8 ? bytes.size() : 8;
    std::memcpy(&word, bytes.data(), count);
    hash = (hash ^ word) * 0x100000001b3ull;
    hash ^= hash >> 29;
    bytes.remove_prefix(count);
  }
  hash = (hash ^ (hash >> 32)) * 0xd6e8feb86659fd93ull;
  hash = (hash ^ (hash >> 32)) * 0xd6e8feb86659fd93ull;
  return hash ^ (hash >> 32);
}

std::string hex64(uint64_t value) { return fmt::format("{:016x}", value); }

}  // namespace fovea
