// Measures how fast a model reads a prompt and writes after it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "fovea/nn/transformer.h"

namespace fovea {

struct DecodeSpeed {
  int64_t prompt = 0;      ///< tokens read
  double prompt_rate = 0;  ///< tokens read a second
  double rate = 0;         ///< tokens written a second after them: 1 / median time of one
  std::string path;        ///< "fused_decoder", "by_layers"
};

/// Reads all of `tokens` in one call, then writes `written` more, each the likeliest. The first
/// written one warms up and does not count. ConfigError below 1 token and 2 written.
DecodeSpeed measure_decode_speed(const Transformer& model, std::span<const int32_t> tokens,
                                 int64_t written = 24);

}  // namespace fovea
