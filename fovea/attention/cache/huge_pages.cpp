// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cache/huge_pages.h"

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <cstddef>

#include "fovea/base/error.h"

namespace fovea {
namespace {

constexpr int64_t kHugePage = int64_t{1} << 21;

int64_t bytes_of(const std::vector<int64_t>& shape, at::ScalarType dtype) {
  int64_t bytes = static_cast<int64_t>(at::elementSize(dtype));
  for (const int64_t n : shape) bytes *= n;
  return bytes;
}

}  // namespace

// Fresh from the system: advice does nothing for pages that an allocator has used before.
HugePages::HugePages(int64_t bytes) {
  const auto whole = static_cast<size_t>(bytes + kHugePage);
  void* const memory = bytes < kHugePage ? MAP_FAILED
                                         : mmap(nullptr, whole, PROT_READ | PROT_WRITE,
                                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    buffer_ = at::empty({bytes}, at::kByte);  // fails with the usual error of too little memory
    return;
  }
  const auto at = reinterpret_cast<uintptr_t>(memory);
  const auto offset = static_cast<int64_t>((kHugePage - at % kHugePage) % kHugePage);
  buffer_ = at::from_blob(
      static_cast<std::byte*>(memory) + offset, {bytes},
      [memory, whole](void*) { munmap(memory, whole); }, at::kByte);
  // The last one only where it is half used or more: it is filled for the sake of its first bytes.
  const int64_t pages = (bytes + kHugePage / 2) / kHugePage;
  madvise(buffer_.data_ptr(), static_cast<size_t>(pages * kHugePage), MADV_HUGEPAGE);
}

at::Tensor HugePages::zeros(const std::vector<int64_t>& shape, at::ScalarType dtype) {
  const int64_t bytes = padded(bytes_of(shape, dtype));
  if (bytes == 0) return at::zeros(shape, at::TensorOptions(dtype));
  const at::Tensor all = HugePages(bytes).allocate(shape, dtype);
  return bytes < kHugePage ? all.zero_() : all;  // else zeros of the system
}

at::Tensor HugePages::allocate(const std::vector<int64_t>& shape, at::ScalarType dtype) {
  const int64_t bytes = bytes_of(shape, dtype);
  require<ShapeError>(padded(bytes) <= remaining(), "huge pages", "{} bytes remain; asked for {}",
                      remaining(), bytes);
  const at::Tensor allocated = buffer_.narrow(0, used_, bytes).view(dtype).view(shape);
  used_ += padded(bytes);
  return allocated;
}

}  // namespace fovea
