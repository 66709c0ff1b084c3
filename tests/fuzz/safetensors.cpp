// Fuzz target: any bytes as a safetensors file give tensors that can be read to the last byte, or a
// CheckpointError.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/safetensors.h"
#include "fovea/base/error.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string& path = fovea::fuzz::file_with(data, size);
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
