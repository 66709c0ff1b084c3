// Fuzz target: any bytes as a safetensors file give tensors that can be read to the last byte, or a
// CheckpointError.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <unistd.h>

#include "fovea/base/error.h"
#include "fovea/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = memfd_create("input", 0);
  static const std::string path = fmt::format("/proc/self/fd/{}", file);
  if (ftruncate(file, static_cast<off_t>(size)) != 0 ||
      pwrite(file, data, size, 0) != static_cast<ssize_t>(size))
    __builtin_trap();
  try {
    const fovea::SafetensorsFile read(path);
    unsigned sum = 0;
    for (const auto& [name, tensor] : read.tensors()) {
      const auto* bytes = static_cast<const unsigned char*>(tensor.const_data_ptr());
      for (size_t i = 0; i < tensor.nbytes(); ++i) sum += bytes[i];
    }
    static volatile unsigned keep;
    keep = sum;
  } catch (const fovea::CheckpointError&) {
  }
  return 0;
}
