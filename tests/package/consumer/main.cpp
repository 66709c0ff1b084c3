// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include "fovea/infer/generate.h"
#include "fovea/text/tokenizer.h"

int main() {
  const auto tokenizer = fovea::byte_tokenizer();
  fovea::ModelConfig config{.layers = 1, .width = 32, .heads = 2, .context = 32};
  config.attention.spec.temperature.value = 0.4;
  const fovea::Transformer model(config.resolved(tokenizer->vocab_size()), 0);
  const auto result = fovea::generate_text(model, *tokenizer, "Once", {.max_tokens = 8});
  std::cout << "consumer: " << result.tokens << " tokens\n";
  return result.tokens > 0 ? 0 : 1;
}
