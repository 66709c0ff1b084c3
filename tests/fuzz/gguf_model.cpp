// Fuzz target: any bytes as a GGUF model give its configuration and tokenizer, or an error of
// Fovea.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/gguf_model.h"
#include "fovea/base/error.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string& path = fovea::fuzz::file_with(data, size);
  try {
    const fovea::GgufModel model(path);
    for (const std::string& name : model.names()) model.find(name);
    (void)model.chat_template();
    (void)model.tokenizer()->encode("some text");
  } catch (const fovea::Error&) {
  }
  return 0;
}
