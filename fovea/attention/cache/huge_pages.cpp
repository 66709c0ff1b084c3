// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cache/huge_pages.h"

#include <ATen/ATen.h>
#include <sys/mman.h>

#include "fovea/base/error.h"

namespace fovea {
namespace {

constexpr int64_t kHugePage = int64_t{1} << 21;

}  // namespace

HugePages::HugePages(int64_t bytes) {
  const at::Tensor memory = at::empty({bytes + kHugePage}, at::kByte);
  const auto at = reinterpret_cast<uintptr_t>(memory.data_ptr());
  const auto offset = static_cast<int64_t>((kHugePage - at % kHugePage) % kHugePage);
  buffer_ = memory.narrow(0, offset, bytes);
  // Whole pages only: the last one would be filled for the sake of its first bytes.
  madvise(buffer_.data_ptr(), static_cast<size_t>(bytes / kHugePage * kHugePage), MADV_HUGEPAGE);
}

at::Tensor HugePages::allocate(const std::vector<int64_t>& shape, at::ScalarType dtype) {
  int64_t bytes = static_cast<int64_t>(at::elementSize(dtype));
  for (const int64_t n : shape) bytes *= n;
  require<ShapeError>(padded(bytes) <= remaining(), "huge pages", "{} bytes remain; asked for {}",
                      remaining(), bytes);
  const at::Tensor allocated = buffer_.narrow(0, used_, bytes).view(dtype).view(shape);
  used_ += padded(bytes);
  return allocated;
}

}  // namespace fovea
