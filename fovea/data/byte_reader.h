// Bytes of a file, decompressed on the way: .gz (also several members), .zst (also several frames),
// anything else as is.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace fovea {

class ByteReader {
 public:
  virtual ~ByteReader() = default;
  /// Fills the front of `out` and returns how many bytes; 0 only at the end of the text. InputError
  /// that names the file where it cannot be read, is damaged, or ends in the middle of compressed
  /// data.
  virtual size_t read(std::span<char> out) = 0;
  /// Bytes of the file itself consumed so far, for progress.
  virtual int64_t consumed() const = 0;
};

/// By the ending of the name. InputError where the file cannot be opened.
std::unique_ptr<ByteReader> open_bytes(const std::filesystem::path& path);

}  // namespace fovea
