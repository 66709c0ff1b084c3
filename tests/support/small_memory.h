// A machine with little memory: allocations of more than `bytes` fail while this lives.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

namespace fovea::testing {

class SmallMemory {
 public:
  explicit SmallMemory(rlim_t bytes) {
    getrlimit(RLIMIT_AS, &before_);
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;  // the address space in use now
    const rlimit limit{.rlim_cur = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + bytes,
                       .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_AS, &limit);
  }
  ~SmallMemory() { setrlimit(RLIMIT_AS, &before_); }
  SmallMemory(const SmallMemory&) = delete;
  SmallMemory& operator=(const SmallMemory&) = delete;

 private:
  rlimit before_{};
};

}  // namespace fovea::testing
