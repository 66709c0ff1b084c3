// Longformer's attention in its causal form: a window, dilated by head, and global tokens (spec
// 4.1; Beltagy et al. 2020).
//
// Query i sees key j <= i of its document where i - j is a multiple of the head's dilation, at most
// `window` times it, where j is global, and where i is global. With `projections`, a global query
// has projections of its own, and so have the keys and values that it reads.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "fovea/config/fields.h"

namespace fovea {

struct Mechanism;

struct LongformerSpec {
  int64_t window = 0;                     ///< w: keys on the left beside the token itself; 0 = off
  std::vector<int64_t> dilation;          ///< of every query head, or one number for all; empty = 1
  int64_t globals = 0;                    ///< the first positions of a document are global
  std::vector<int64_t> global_positions;  ///< and these
  bool projections = false;               ///< global rows have projections of their own

  bool active() const { return window > 0; }
  void describe(FieldVisitor& v);
  void check() const;
  bool operator==(const LongformerSpec&) const = default;
};

const Mechanism& longformer_mechanism();

}  // namespace fovea
