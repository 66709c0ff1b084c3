// Fuzz target: any bytes as a GGUF model give its configuration and tokenizer, or an error of
// Fovea.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <unistd.h>

#include "fovea/base/error.h"
#include "fovea/checkpoint/gguf_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = memfd_create("input", 0);
  static const std::string path = fmt::format("/proc/self/fd/{}", file);
  if (ftruncate(file, static_cast<off_t>(size)) != 0 ||
      pwrite(file, data, size, 0) != static_cast<ssize_t>(size))
    __builtin_trap();
  try {
    const fovea::GgufModel model(path);
    for (const std::string& name : model.names()) model.find(name);
    (void)model.chat_template();
    (void)model.tokenizer()->encode("some text");
  } catch (const fovea::Error&) {
  }
  return 0;
}
