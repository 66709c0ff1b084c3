// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/memory_needs.h"

namespace fovea {

double position_table_bytes(const ModelConfig& c, int64_t positions) {
  const auto rows = static_cast<double>(positions);
  if (c.positions == Positions::sinusoidal) return rows * static_cast<double>(c.width) * 8.0;
  if (c.positions != Positions::rope) return 0.0;
  const int64_t rotary = c.rope.rotary_dim > 0 ? c.rope.rotary_dim : c.head_dim;
  // Angles and sines in doubles, cosines and sines in float32, one for each pair of components.
  return rows * static_cast<double>(rotary / 2) * (8.0 + 8.0 + 4.0 + 4.0);
}

double pass_bytes(const ModelConfig& c, double tokens, double element) {
  const int64_t heads = (c.heads + 2 * c.kv_heads) * c.head_dim;
  return tokens * element * static_cast<double>(3 * c.width + heads + 2 * c.ffn_width);
}

}  // namespace fovea
