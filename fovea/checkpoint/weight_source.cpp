// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/weight_source.h"

#include <sys/mman.h>

namespace fovea {

void release_pages(const MappedFile& file) {
  const std::span<const std::byte> bytes = file.bytes();
  if (!bytes.empty()) ::madvise(const_cast<std::byte*>(bytes.data()), bytes.size(), MADV_DONTNEED);
}

}  // namespace fovea
