// The input of a fuzz target as a file, for readers that map one.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>

namespace fovea::fuzz {

/// The path of a file in memory that holds these bytes until the next call.
inline const std::string& file_with(const uint8_t* data, size_t size) {
  static const int file = memfd_create("input", 0);
  static const std::string path = fmt::format("/proc/self/fd/{}", file);
  if (ftruncate(file, static_cast<off_t>(size)) != 0 ||
      pwrite(file, data, size, 0) != static_cast<ssize_t>(size))
    __builtin_trap();
  return path;
}

}  // namespace fovea::fuzz
