// The state of decoding: the caches of all layers, for sequences of different lengths.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fovea/attention/attention.h"
#include "fovea/attention/cache/cache.h"
#include "fovea/attention/cache/sorted_copy.h"
#include "fovea/attention/positions/rope.h"

namespace fovea {

/// Whether positions below the shorter table's end are rotated alike.
bool same_rotation(const RopeTable& a, const RopeTable& b);

class DecodeState {
 public:
  std::vector<AttentionCache> layers;
  std::vector<SortedCopy> sorted;  ///< of each layer's keys
  /// The path of the last decode(): `fused_decoder` or `by_layers`, and why; with hard Focus also
  /// the plan of its last layer.
  PathTaken path;
  RopeTable rope;  ///< of the whole request: its capacity is n of a dynamic rule (6.2)

  int64_t sequences() const { return layers.empty() ? 0 : layers.front().batch(); }
  int64_t capacity() const { return layers.empty() ? 0 : layers.front().capacity(); }
  /// Tokens of each sequence, and of the longest.
  std::vector<int64_t> lengths() const;
  int64_t length() const { return layers.empty() ? 0 : layers.front().length(); }
  /// Forgets tokens >= length, of every sequence or one length each.
  void truncate(int64_t length);
  void truncate(std::span<const int64_t> lengths);
  /// An independent copy.
  DecodeState fork() const;
  int64_t bytes() const;

  /// One batch of all sequences of `states` in this order, copied: its sequences are decoded
  /// together, whatever their lengths. The capacity is the largest of theirs. ConfigError for
  /// states of other models or of other RoPE tables (a dynamic rule depends on the capacity).
  static DecodeState join(std::span<const DecodeState* const> states);
  /// A copy of some sequences, in this order, with room for `capacity` tokens; 0: for as many.
  DecodeState select(std::span<const int64_t> sequences, int64_t capacity = 0) const;
};

}  // namespace fovea
