// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/memory_limit.h"

#include <fmt/format.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <fstream>

namespace fovea {
namespace {

/// The number in a file of a control group; 0 where it is missing or says "max".
int64_t group_limit(const char* path) {
  std::ifstream file(path);
  int64_t bytes = 0;
  return file >> bytes ? std::max<int64_t>(bytes, 0) : 0;
}

std::string amount(double bytes) {
  return bytes < 1e9    ? fmt::format("{:.0f} MB", bytes / 1e6)
         : bytes < 1e15 ? fmt::format("{:.1f} GB", bytes / 1e9)
                        : fmt::format("{:.1e} GB", bytes / 1e9);
}

}  // namespace

int64_t memory_limit_bytes() {
  struct sysinfo info {};
  if (::sysinfo(&info) != 0) return 0;
  const auto all = static_cast<int64_t>(info.totalram + info.totalswap) * info.mem_unit;
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    if (const int64_t group = group_limit(path); group > 0)
      return std::min(all, group + static_cast<int64_t>(info.totalswap) * info.mem_unit);
  }
  return all;
}

MemoryNeeded::MemoryNeeded(std::string_view what, double bytes, int64_t limit)
    : text_(fmt::format("{} for {}, this machine has {}", amount(bytes), what,
                        amount(static_cast<double>(limit)))) {}

void require_memory(std::string_view what, double bytes) {
  const int64_t limit = memory_limit_bytes();
  if (limit > 0 && bytes > static_cast<double>(limit)) throw MemoryNeeded(what, bytes, limit);
}

}  // namespace fovea
