// Counted allocation.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/held_memory.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

namespace fovea {
namespace {

// Bytes that are alive, and the most since the peak was last set.
std::atomic<int64_t> held_bytes{0}, most_bytes{0};

void* counted(void* p) {
  if (p == nullptr) throw std::bad_alloc();
  const int64_t now = held_bytes += static_cast<int64_t>(malloc_usable_size(p));
  if (now > most_bytes) most_bytes = now;
  return p;
}

void release(void* p) noexcept {
  if (p == nullptr) return;
  held_bytes -= static_cast<int64_t>(malloc_usable_size(p));
  std::free(p);
}

}  // namespace

int64_t bytes_held_during(const std::function<void()>& action) {
  int64_t bytes = 0;
  std::thread([&] {
    const int64_t before = held_bytes;
    most_bytes = before;
    action();
    bytes = most_bytes - before;
  }).join();
  return bytes;
}

}  // namespace fovea

// The other forms end in these two.
void* operator new(size_t size) { return fovea::counted(std::malloc(size > 0 ? size : 1)); }
void* operator new(size_t size, std::align_val_t alignment) {
  const auto to = static_cast<size_t>(alignment);
  return fovea::counted(std::aligned_alloc(to, (size + to - 1) / to * to));
}
void operator delete(void* p) noexcept { fovea::release(p); }
void operator delete(void* p, size_t) noexcept { fovea::release(p); }
void operator delete(void* p, std::align_val_t) noexcept { fovea::release(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { fovea::release(p); }
