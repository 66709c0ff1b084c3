// Memory of the kernels.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace fovea::kernels {

/// Uninitialised floats, aligned to cache lines; much memory on huge pages. Packed operands and
/// scratch.
class FloatBuffer {
 public:
  explicit FloatBuffer(int64_t n) : data_(take(static_cast<size_t>(n) * sizeof(float))) {}
  float* data() const { return data_.get(); }

 private:
  // Operands beyond this are read from end to end for every block of queries. With small pages
  // their address translations alone overflow the CPU's cache of them (12 MiB of pages). Hardware
  // also stops prefetching at the end of each small page, which holds a panel of keys.
  static constexpr size_t kHugePage = size_t{1} << 21, kMuch = 2 * kHugePage;

  struct Free {
    std::align_val_t alignment;
    void operator()(float* p) const { ::operator delete(p, alignment); }
  };
  using Memory = std::unique_ptr<float, Free>;

  static Memory take(size_t bytes) {
    const std::align_val_t alignment{bytes < kMuch ? 64 : kHugePage};
    Memory memory(static_cast<float*>(::operator new(bytes, alignment)), {alignment});
    // Advice: where the system refuses, pages stay small.
    if (bytes >= kMuch) madvise(memory.get(), bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
    return memory;
  }

  Memory data_;
};

}  // namespace fovea::kernels
