// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cuda/decode/draws.h"

#include "fovea/base/error.h"
#include "fovea/kernels/cuda/decode/launches.h"
#include "fovea/kernels/cuda/machine.h"

namespace fovea::kernels::cuda {

std::optional<std::string> why_not(const TokenDraws& draws) {
  if (draws.tokens >= int64_t{1} << 24) return "2^24 tokens and more";
  return std::nullopt;
}

void run(const TokenDraws& draws) {
  const int64_t texts = std::ssize(draws.texts);
  require<ShapeError>(draws.tokens > 0 && std::ssize(draws.chosen) == texts, "draws",
                      "expected logits and a place for each of {} tokens; got {} and {}", texts,
                      draws.tokens, draws.chosen.size());
  if (const auto why = why_not(draws))
    fail<UnsupportedError>("draws", "no kernel draws of {}", *why);
  if (texts == 0) return;
  Scratch memory(Scratch::room<TokenDraw>(texts) + Scratch::room<int32_t>(texts));
  auto* const there = memory.take<TokenDraw>(texts);
  auto* const chosen = memory.take<int32_t>(texts);
  const Stream stream = services().stream();
  copy_to_device(there, draws.texts.data(), texts * static_cast<int64_t>(sizeof(TokenDraw)),
                 stream);
  check(launch_draw({.logits = draws.logits,
                     .draws = there,
                     .chosen = chosen,
                     .tokens = static_cast<int>(draws.tokens),
                     .texts = static_cast<int>(texts),
                     .row = draws.row},
                    stream),
        "the draw of tokens");
  copy_to_host(draws.chosen.data(), chosen, texts * static_cast<int64_t>(sizeof(int32_t)), stream);
}

}  // namespace fovea::kernels::cuda
