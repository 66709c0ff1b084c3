// Files: whole reads, atomic writes, folder locks.
//
// A write is atomic: temporary beside the target, fsync, rename, fsync of the folder. A reader
// never sees half a file. Every function throws IoError with the path, the system's message and the
// remedy.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace fovea {

/// A kind of file that is read whole, and the most bytes that it may have.
struct ReadLimit {
  std::string_view what;
  uint64_t bytes;
};
inline constexpr ReadLimit kLargestText{"a text that is read whole", uint64_t{1} << 30};

/// The whole file as bytes. InputError where it does not exist, and where it has more bytes than
/// `limit` (kLargestText) allows; a file that never ends (/dev/zero) is so refused.
std::string read_file(const std::filesystem::path& path);
std::string read_file(const std::filesystem::path& path, const ReadLimit& limit);
/// The same from an open descriptor that stays open; `name` stands for it in errors.
std::string read_descriptor(int descriptor, const std::string& name, const ReadLimit& limit);

/// A file descriptor that writes all bytes or throws IoError (disk full, short write, ...).
class OutputFile {
 public:
  /// Creates or truncates `path`; append mode keeps what is there.
  enum class Mode { truncate, append };
  explicit OutputFile(const std::filesystem::path& path, Mode mode = Mode::truncate);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  void write(std::string_view bytes);
  void write(std::span<const std::byte> bytes);
  void sync();
  /// Closes and reports what closing reports; the destructor closes silently.
  void close();

 private:
  int descriptor_ = -1;
  std::filesystem::path path_;
};

/// Writes `path` atomically from one string. A link to a regular file is followed; IoError where
/// anything but a regular file is there.
void write_file(const std::filesystem::path& path, std::string_view bytes);

/// Writes `path` atomically by `fill(file)`, called on the temporary. If `fill` throws, `path` is
/// as before.
void write_file(const std::filesystem::path& path, const std::function<void(OutputFile&)>& fill);

/// Fills a folder under a temporary name, then renames it to `path`, which must not exist. All
/// files in it are synced.
void write_folder(const std::filesystem::path& path,
                  const std::function<void(const std::filesystem::path& folder)>& fill);

/// Makes a rename or new entry in `folder` durable.
void sync_folder(const std::filesystem::path& folder);

/// Creates `path` and its parents.
void make_folders(const std::filesystem::path& path);

/// A read-only memory map of a whole file. Empty files map to an empty span.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

/// An exclusive lock on a folder (file ".lock" in it, flock), held while this lives. LockedError
/// where another process holds it; the message names that process.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;

 private:
  int descriptor_ = -1;
};

/// A 64-bit fingerprint, the same on every little-endian machine; `seed` chains several parts. Not
/// cryptographic.
uint64_t fingerprint(std::string_view bytes, uint64_t seed = 0);
/// 16 lower-case hex digits.
std::string hex64(uint64_t value);

}  // namespace fovea
