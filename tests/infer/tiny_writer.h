// A model small enough for tests of generation, and what it says greedily.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <string_view>
#include <vector>

#include "fovea/infer/generate.h"

namespace fovea::testing {

inline ModelConfig writer_config() {
  ModelConfig c;
  c.layers = 1;
  c.width = 16;
  c.heads = 2;
  c.context = 24;
  return c;
}

/// A model that makes varied text: logits of a fresh model are nearly flat.
inline Transformer tiny(ModelConfig c = writer_config()) {
  Transformer model(c.resolved(byte_tokenizer()->vocab_size()), 4);
  const at::NoGradGuard no_grad;
  model.parameters().find("model.embed_tokens.weight")->value.mul_(6.0);
  return model;
}

inline const Tokenizer& bytes() { return *byte_tokenizer(); }

/// Greedy continuation by the full forward pass over the last `window` tokens at most.
inline std::vector<int32_t> greedy_by_full_forward(const Transformer& model,
                                                   std::string_view prompt, int64_t count) {
  std::vector<int32_t> ids{bytes().bos()};
  bytes().append(prompt, ids);
  std::vector<int32_t> made;
  const at::NoGradGuard no_grad;
  for (int64_t i = 0; i < count; ++i) {
    ModelInput input;
    input.tokens_bt = at::tensor(at::ArrayRef<int32_t>(ids), at::kInt).to(at::kLong).unsqueeze(0);
    const auto next = static_cast<int32_t>(model.logits(model.hidden(input))
                                               .select(1, -1)
                                               .narrow(1, 0, bytes().vocab_size())
                                               .argmax()
                                               .item<int64_t>());
    if (next == bytes().eos()) break;
    ids.push_back(next);
    made.push_back(next);
  }
  return made;
}

inline GenerateOptions greedy(int64_t tokens) {
  return {.sampling = {.temperature = 0.0}, .max_tokens = tokens};
}

}  // namespace fovea::testing
