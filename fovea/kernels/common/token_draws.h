// The contract of drawing next tokens from logits that stand on a device.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace fovea::kernels {

/// How the next token of one text is drawn from its logits l: the likeliest where the temperature
/// is 0, else the first token whose weights exp(l / temperature), summed from token 0 on, exceed
/// `uniform` of their total.
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
