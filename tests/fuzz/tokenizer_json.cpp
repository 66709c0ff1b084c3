// Fuzz target: any bytes as a tokenizer.json give a tokenizer whose encoding decodes to the text,
// or an error of ours.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "fovea/base/error.h"
#include "fovea/text/json_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto tokenizer = fovea::json_tokenizer(
        std::string(reinterpret_cast<const char*>(data), size), {}, "tokenizer.json");
    std::string text;
    for (const int32_t token : tokenizer->encode("It's 12 o'clock,\n  déjà vu \xFF"))
      text += tokenizer->piece(token);
    if (text.size() > 1000) __builtin_trap();
  } catch (const fovea::Error&) {
  }
  return 0;
}
