// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/mapped_weights.h"

#include <sys/mman.h>

#include "fovea/base/error.h"

namespace fovea {

std::shared_ptr<const MappedFile> map_weights(const std::filesystem::path& path) {
  try {
    return std::make_shared<const MappedFile>(path);
  } catch (const InputError& error) {
    throw CheckpointError(error.what());
  }
}

void release_pages(const MappedFile& file) {
  const std::span<const std::byte> bytes = file.bytes();
  if (!bytes.empty()) ::madvise(const_cast<std::byte*>(bytes.data()), bytes.size(), MADV_DONTNEED);
}

}  // namespace fovea
