// The most memory that this process can ever have, and refusals of requests beyond it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <new>
#include <string>
#include <string_view>

namespace fovea {

/// Memory and swap of the machine, less where a control group allows less; 0 where it is not known.
int64_t memory_limit_bytes();

/// Thrown by require_memory(). It is handled like a failed allocation (memory_shortage.h), so that
/// a caller who knows what to lower says it.
class MemoryNeeded : public std::bad_alloc {
 public:
  MemoryNeeded(std::string_view what, double bytes, int64_t limit);
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

/// Throws MemoryNeeded where `bytes` for `what` are more than memory_limit_bytes(): before anything
/// is allocated, because a system that promises memory it does not have kills the process later.
void require_memory(std::string_view what, double bytes);

}  // namespace fovea
