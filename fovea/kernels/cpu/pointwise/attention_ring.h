// Rings of packed tokens, where neighbouring blocks read neighbouring tokens, as with a window or
// short documents (internal to kernels/cpu). A thread packs tokens just before they are read, into
// memory that stays in its cache.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "fovea/kernels/common/visits.h"

namespace fovea::kernels {

/// Keys [0, kept), which are sinks or their neighbours, stay; key n of the others is at
/// n & (keys - 1).
struct RingSize {
  int64_t kept = 0;
  int64_t keys = 0;  ///< a power of two, 0: no ring
};

/// Keys of a block's ranges that go through the ring: [first, second), all from `kept` on.
std::pair<int64_t, int64_t> ring_keys(std::span<const TileRange> ranges, int64_t kept);

/// The smallest ring for blocks of queries in their order. None where it would hold more than
/// `most` keys, or where a block goes back behind the one before it.
RingSize key_ring(const Visits& visits, int64_t most);

/// Neighbouring blocks of keys, and the rows of queries that they reach.
struct RingPartition {
  int64_t block_begin = 0, block_end = 0;
  int64_t row_begin = 0, row_end = 0;
};

/// Blocks of keys that reach few rows each, in partitions that depend on the visits alone.
struct RowRing {
  int64_t rows = 0;                       ///< of a ring for what one block reaches, a power of two
  int64_t kept = 0;                       ///< keys [0, kept) are sinks or their neighbours
  int64_t sink_begin = 0;                 ///< rows that see of block 0 nothing but sinks
  std::vector<RingPartition> partitions;  ///< none: no ring

  /// Where the rows begin that the next partition owns; `rows` for the last one.
  int64_t owned_end(int64_t part, int64_t all) const {
    return part + 1 < std::ssize(partitions) ? partitions[part + 1].row_begin : all;
  }
  /// Rows that partition n shares with the one before it.
  int64_t shared_rows(int64_t n) const {
    return std::max<int64_t>(0, partitions[n - 1].row_end - partitions[n].row_begin);
  }
  /// A block's ranges of rows without those that see sinks alone.
  void rows_of(int64_t block, std::span<const TileRange> ranges, std::vector<TileRange>& out) const;
};

/// The rings of the backward pass; none where a block would reach more than `most` rows.
RowRing row_ring(const Visits& visits, int64_t most);

}  // namespace fovea::kernels
