// Fuzz target: any bytes as a GGUF file give tensors that can be read to the last value, or an
// error of Fovea.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/gguf.h"
#include "fovea/base/error.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string& path = fovea::fuzz::file_with(data, size);
  try {
    const fovea::GgufFile read(path);
    float sum = 0;
    for (const fovea::GgufTensor& tensor : read.tensors()) {
      int64_t count = 1;
      for (const int64_t axis : tensor.shape) count *= axis;
      std::vector<float> values(static_cast<size_t>(count));
      fovea::dequantise(tensor.type, read.bytes(tensor), values);
      for (const float value : values) sum += value;
    }
    static volatile float keep;
    keep = sum;
  } catch (const fovea::CheckpointError&) {
  } catch (const fovea::UnsupportedError&) {
  }
  return 0;
}
