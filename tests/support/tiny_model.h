// Models small enough for tests: two layers, width 16.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/nn/transformer.h"

namespace fovea::testing {

inline ModelConfig tiny_config(int64_t vocab = 259) {
  ModelConfig config;
  config.vocab_size = vocab;
  config.layers = 2;
  config.width = 16;
  config.heads = 2;
  config.kv_heads = 1;
  config.ffn_width = 32;
  config.context = 16;
  return config.resolved(vocab);
}

}  // namespace fovea::testing
