// KV shifting: keys and values mixed with those of the token before (Xu et al. 2024, "KV Shifting
// Attention").
//
//   k'_i = a1 k_i + a2 k_{i-1}      v'_i = b1 v_i + b2 v_{i-1}
//
// a and b are learned, two numbers a key head and a value head; the row before the first token of a
// document is 0. Keys are shifted after their rotation, so that
//
//   q_i . k'_j = a1 (q_i . k_j) + a2 (q_i . k_{j-1}):
//
// the shift is Multi-Token's convolution over keys with the kernels (a2, a1, 0) on the logits and
// (0, b1, b2) on the weights. It acts before stage 1: every path and kernel reads shifted rows, and
// a cache holds them.
//
// Shape suffixes: b batch, g key or value heads, s keys, d width.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/config/fields.h"

namespace fovea {

struct Mechanism;

struct KvShiftSpec {
  bool keys = false;
  bool values = false;
  double start = 0.0;  ///< of a2 and b2; a1 and b1 start at 1 - start. 0 is neutral

  bool active() const { return keys || values; }
  void describe(FieldVisitor& v);
  bool operator==(const KvShiftSpec&) const = default;
};

const Mechanism& kv_shift_mechanism();

}  // namespace fovea
