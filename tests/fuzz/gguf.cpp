// Fuzz target: any bytes as a GGUF file give tensors that can be read to the last value, or an
// error of Fovea.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <unistd.h>

#include "fovea/base/error.h"
#include "fovea/checkpoint/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = memfd_create("input", 0);
  static const std::string path = fmt::format("/proc/self/fd/{}", file);
  if (ftruncate(file, static_cast<off_t>(size)) != 0 ||
      pwrite(file, data, size, 0) != static_cast<ssize_t>(size))
    __builtin_trap();
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
