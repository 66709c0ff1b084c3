// The nearest start of Differential attention to a pretrained model (spec 1).
//
// Two heads of the base, with outputs A1 v1 and A2 v2, become one of (A1 - lambda A2) [v1, v2],
// normed. No setting of lambda and norm computes what the base computes, so the start is chosen on
// some text, layer by layer behind the layers that are chosen already:
//   lambda  of a short list: the one that leaves the smallest error below
//   W_o     least squares: n W_o' nearest to the base's a W_o, for head outputs n of the start and
//           a of the base
// Queries, keys and values stay. Under grouped queries the heads of the base are put in the order
// in which both maps of a head read the keys that they read in the base (1.4).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "fovea/nn/transformer.h"

namespace fovea {

/// The config of the start. ConfigError for an odd number of heads or of key heads;
/// UnsupportedError for a base with attention mechanisms of its own, or LoRA.
ModelConfig differential_config(const ModelConfig& base);

/// The query head of the base at place `place` of the start.
int64_t head_of_base(int64_t place, int64_t heads, int64_t kv_heads);

struct DifferentialStart {
  Transformer model;
  std::vector<double> lambda;  ///< of every layer
  /// The error of every layer's attention behind W_o, on the calibration text: mean squared error
  /// over mean square.
  std::vector<double> error;
};

/// `told(layers done)` may throw.
DifferentialStart differential_start(const Transformer& base, std::span<const ModelInput> text,
                                     const std::function<void(int64_t)>& told = {});

}  // namespace fovea
