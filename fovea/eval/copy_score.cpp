// The copy score.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/copy_score.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "fovea/base/error.h"

namespace fovea {

CopyScore copy_score(const Transformer& model, const Tokenizer& tokenizer, const std::string& text,
                     int64_t length, int64_t windows) {
  require<ConfigError>(length >= 2 && windows >= 1, "copy score",
                       "a window must have at least 2 tokens, and there must be one; got {} and {}",
                       length, windows);
  std::vector<int32_t> tokens;
  tokenizer.append(text, tokens);
  require<InputError>(length <= std::ssize(tokens), "copy score",
                      "the text must have a window of {} tokens; it has {}", length, tokens.size());
  CopyScore score{.length = length};
  double first = 0.0, second = 0.0;
  for (; score.windows < windows && (score.windows + 1) * length <= std::ssize(tokens);
       ++score.windows) {
    at::Tensor ids = at::empty({1, 2 * length}, at::kLong);
    int64_t* to = ids.mutable_data_ptr<int64_t>();
    const auto from = tokens.begin() + score.windows * length;
    std::copy_n(from, length, to);
    std::copy_n(from, length, to + length);
    at::Tensor targets = at::full({1, 2 * length}, -1, at::kLong);
    targets.narrow(1, 0, 2 * length - 1).copy_(ids.narrow(1, 1, 2 * length - 1));
    const at::Tensor nll =
        model.token_nll({.tokens_bt = ids.to(model.device())}, targets.to(model.device()))[0];
    // The first token of the repetition is foretold by nothing.
    first += nll.narrow(0, 0, length - 1).mean().item<double>();
    second += nll.narrow(0, length, length - 1).mean().item<double>();
  }
  score.first = std::exp(first / static_cast<double>(score.windows));
  score.second = std::exp(second / static_cast<double>(score.windows));
  require<NumericalError>(std::isfinite(score.first) && std::isfinite(score.second), "copy score",
                          "the perplexities are {} and {}, no finite numbers: the model's weights "
                          "are damaged or its logits overflow",
                          score.first, score.second);
  return score;
}

}  // namespace fovea
