// The contract of drawing next tokens from logits that stand on a device.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace fovea::kernels {

/// How the next token of one text is drawn from its logits l. With temperature 0 it is the
/// likeliest. Otherwise weights exp(l / temperature) are summed from token 0 on, and the first
/// token that brings the sum over `uniform` of the total is drawn.
struct TokenDraw {
  double temperature = 0.0;
  double uniform = 0.0;  ///< in [0, 1)
};

/// One token of each of some texts. run() returns when they are known.
struct TokenDraws {
  const float* logits = nullptr;     ///< [texts][row], memory of the device
  int64_t tokens = 0, row = 0;       ///< logits that count, and elements from row to row
  std::span<const TokenDraw> texts;  ///< host
  std::span<int32_t> chosen;         ///< host, one a text; -1 where a logit is NaN
};

}  // namespace fovea::kernels
