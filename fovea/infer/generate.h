// Text from a model: one token at a time with a cache.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "fovea/nn/transformer.h"
#include "fovea/text/tokenizer.h"

namespace fovea {

struct SamplingOptions {
  double temperature = 0.8;  ///< 0 = greedy
  int64_t top_k = 0;         ///< 0 = all tokens
  int64_t max_tokens = 200;
  uint64_t seed = 0;

  /// ConfigError with the key of the first impossible value.
  void check() const;
};

/// Continues `prompt` (after BOS, where the tokenizer has one) until the end mark, `max_tokens` or
/// the model's trained context. Returns the new text, valid UTF-8; `stream` receives it piece by
/// piece. The same seed gives the same text on one machine.
std::string generate_text(const Transformer& model, const Tokenizer& tokenizer,
                          std::string_view prompt, const SamplingOptions& options = {},
                          const std::function<void(std::string_view)>& stream = {});

/// The next token from float32 logits [vocab]: temperature, then the top k, then a draw u in [0,
/// 1). Ties go to the lower index.
int64_t sample_token(const at::Tensor& logits, const SamplingOptions& options, double u);

}  // namespace fovea
