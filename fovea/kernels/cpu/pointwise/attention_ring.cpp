// How visits fit rings.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/pointwise/attention_ring.h"

#include <bit>
#include <optional>

#include "fovea/kernels/cpu/tile_sizes.h"

namespace fovea::kernels {
namespace {

constexpr int64_t kMostKept = kKeyBlock;
constexpr int64_t kMostPartitions = 8;  // as many threads find work a key head
constexpr int64_t kRingsPerPartition = 4;

int64_t in_tiles(int64_t n) { return (n + kVisitTile - 1) / kVisitTile * kVisitTile; }

int64_t power_of_two(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
}

// Tiles of keys up to the last open one; nothing where that is far from the first one.
std::optional<int64_t> kept_keys(const Visits& visits) {
  int64_t open = 0;
  for (int64_t n = 0; visits.rule.opens && n < visits.keys; ++n)
    open = visits.key.open[n] != 0 ? n + 1 : open;
  return open <= kMostKept ? std::optional(in_tiles(open)) : std::nullopt;
}

// The first rows that see of block 0 nothing but sinks; nothing where documents are many.
std::optional<int64_t> first_sink_row(const Visits& visits) {
  const TokenColumns &query = visits.query, &key = visits.key;
  const int64_t last_query = visits.queries - 1, last_key = visits.keys - 1;
  const int32_t document = key.document[0];
  if (!visits.ordered || !visits.rule.causal || visits.rule.patterned ||
      key.document[last_key] != document || query.document[0] != document ||
      query.document[last_query] != document)
    return std::nullopt;
  const int32_t last = key.position[std::min(kKeyBlock - 1, last_key)];
  int64_t row = 0;
  while (row <= last_query && query.position[row] - last < visits.rule.reach) ++row;
  return in_tiles(row);
}

}  // namespace

std::pair<int64_t, int64_t> ring_keys(std::span<const TileRange> ranges, int64_t kept) {
  std::pair<int64_t, int64_t> keys{0, 0};
  for (const TileRange& range : ranges) {
    if (range.key_end <= kept) continue;
    if (keys.second == 0) keys.first = std::max(range.key_begin, kept);
    keys.second = range.key_end;
  }
  return keys;
}

RingSize key_ring(const Visits& visits, int64_t most) {
  const std::optional<int64_t> kept = kept_keys(visits);
  if (!kept) return {};
  int64_t begin = 0, longest = kVisitTile;
  for (int64_t b = 0; b < visits.by_query.blocks(); ++b) {
    const auto [first, last] = ring_keys(visits.by_query.of_block(b), *kept);
    if (last == 0) continue;
    if (first < begin || last - first > most) return {};
    begin = first;
    longest = std::max(longest, last - first);
  }
  return {*kept, power_of_two(longest)};
}

void RowRing::rows_of(int64_t block, std::span<const TileRange> ranges,
                      std::vector<TileRange>& out) const {
  out.assign(ranges.begin(), ranges.end());
  if (block > 0 || kept == 0) return;
  std::erase_if(out, [&](const TileRange& range) { return range.key_begin >= sink_begin; });
  for (TileRange& range : out) range.key_end = std::min(range.key_end, sink_begin);
}

RowRing row_ring(const Visits& visits, int64_t most) {
  const std::optional<int64_t> kept = kept_keys(visits);
  if (!kept || visits.keys == 0 || visits.queries == 0) return {};
  RowRing ring{.rows = kVisitTile, .kept = *kept, .sink_begin = 0, .partitions = {}};
  if (ring.kept > 0) {
    const std::optional<int64_t> row = first_sink_row(visits);
    if (!row) return {};
    ring.sink_begin = *row;
  }
  const int64_t blocks = visits.by_key.blocks(), all = in_tiles(visits.queries);
  std::vector<std::pair<int64_t, int64_t>> reached;  // rows of every block
  std::vector<TileRange> ranges;
  int64_t begin = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    ring.rows_of(b, visits.by_key.of_block(b), ranges);
    if (ranges.empty()) {
      reached.emplace_back(-1, -1);
      continue;
    }
    const int64_t first = ranges.front().key_begin, last = in_tiles(ranges.back().key_end);
    if (first < begin || last - first > most) return {};
    begin = first;
    ring.rows = std::max(ring.rows, power_of_two(last - first));
    reached.emplace_back(first, last);
  }
  const int64_t count =
      std::clamp<int64_t>(visits.keys / (kRingsPerPartition * ring.rows), 1, kMostPartitions);
  std::vector<RingPartition> partitions;
  for (int64_t n = 0; n < count; ++n) {
    RingPartition part{.block_begin = blocks * n / count, .block_end = blocks * (n + 1) / count};
    part.row_begin = n == 0 ? 0 : all;
    for (int64_t b = part.block_end - 1; b >= part.block_begin && n > 0; --b)
      if (reached[b].first >= 0) part.row_begin = reached[b].first;
    part.row_end = part.row_begin;
    for (int64_t b = part.block_begin; b < part.block_end; ++b)
      part.row_end = std::max(part.row_end, reached[b].second);
    partitions.push_back(part);
  }
  for (int64_t n = 2; n < count; ++n)  // no row has three parts
    if (partitions[n - 2].row_end > partitions[n].row_begin) return {};
  ring.partitions = std::move(partitions);
  return ring;
}

}  // namespace fovea::kernels
