// Fuzz target: any bytes as a SentencePiece model or a tiktoken rank file give a tokenizer that
// encodes and decodes, or an error of ours.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "fovea/base/error.h"
#include "fovea/text/sentencepiece_tokenizer.h"
#include "fovea/text/tiktoken.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string file(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer =
        fovea::looks_like_tiktoken(file)
            ? fovea::json_tokenizer(fovea::tiktoken_json(file, "gpt2", "ranks"), {}, "ranks")
            : fovea::sentencepiece_tokenizer(fovea::read_sentencepiece(file, "model"), {}, "model");
    const auto tokens = tokenizer->encode("It's 12 o'clock,\n  déjà vu \xFF");
    if (tokenizer->decode(tokens).size() > 10000 + 100 * size) __builtin_trap();
  } catch (const fovea::Error&) {
  }
  return 0;
}
