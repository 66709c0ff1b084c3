// Deriving visits from a mask rule.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/visits.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "fovea/base/error.h"

namespace fovea {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int32_t>::max() / 2;  // differences must fit too

int64_t padded(int64_t n, int64_t block) { return (n + block - 1) / block * block; }

/// Documents may carry any labels: numbers in order of appearance, so that 32 bits hold them.
using Labels = std::unordered_map<int64_t, int32_t>;

TokenColumns columns_of(const MaskRule& rule, std::span<const TokenPlace> places, Labels& labels,
                        int64_t block, int32_t padding, PlanMemory& memory) {
  const size_t size = static_cast<size_t>(padded(std::ssize(places), block));
  std::vector<int32_t> position(size), document(size, padding), pattern_id(size), open(size);
  for (size_t n = 0; n < places.size(); ++n) {
    const TokenPlace& place = places[n];
    require<ShapeError>(place.position >= -kLargest && place.position <= kLargest, "attention",
                        "positions must be between {} and {}; got {}", -kLargest, kLargest,
                        place.position);
    position[n] = static_cast<int32_t>(place.position);
    document[n] =
        labels.try_emplace(place.document, static_cast<int32_t>(labels.size())).first->second;
    pattern_id[n] = visit_pattern_id(rule, place.position);
    open[n] = visit_open(rule, place.position);
  }
  return {.position = memory.keep(std::move(position)),
          .document = memory.keep(std::move(document)),
          .pattern_id = memory.keep(std::move(pattern_id)),
          .open = memory.keep(std::move(open))};
}

// Documents one after the other, positions ascending in each.
bool in_order(std::span<const TokenPlace> places) {
  std::unordered_set<int64_t> closed;
  for (size_t n = 1; n < places.size(); ++n) {
    if (places[n].document == places[n - 1].document) {
      if (places[n].position <= places[n - 1].position) return false;
      continue;
    }
    closed.insert(places[n - 1].document);
    if (closed.contains(places[n].document)) return false;
  }
  return true;
}

// The same visits seen from the keys. A block of queries belongs to a block of keys in full only if
// one full range covers it.
TileRanges turned(const TileRanges& by_query, int64_t queries, int64_t keys, int64_t key_block,
                  PlanMemory& memory) {
  const int64_t blocks = (keys + key_block - 1) / key_block;
  std::vector<std::vector<TileRange>> of_keys(static_cast<size_t>(blocks));
  for (int64_t b = 0; b < by_query.blocks(); ++b) {
    const int64_t begin = b * by_query.query_block;
    const int64_t end = std::min(begin + by_query.query_block, queries);
    for (const TileRange& range : by_query.of_block(b)) {
      for (int64_t n = range.key_begin / key_block; n * key_block < range.key_end; ++n) {
        const bool covers = range.kind == TileRange::Kind::full &&
                            range.key_begin <= n * key_block &&
                            range.key_end >= std::min((n + 1) * key_block, keys);
        const TileRange::Kind kind = covers ? TileRange::Kind::full : TileRange::Kind::partial;
        std::vector<TileRange>& list = of_keys[n];
        if (!list.empty() && list.back().key_end == end) continue;  // this block's second range
        if (!list.empty() && list.back().key_end == begin && list.back().kind == kind) {
          list.back().key_end = end;
        } else {
          list.push_back({.key_begin = begin, .key_end = end, .kind = kind});
        }
      }
    }
  }
  std::vector<int64_t> block_begin{0};
  std::vector<TileRange> ranges;
  for (const std::vector<TileRange>& list : of_keys) {
    ranges.insert(ranges.end(), list.begin(), list.end());
    block_begin.push_back(std::ssize(ranges));
  }
  return {.query_block = key_block,
          .block_begin = memory.keep(std::move(block_begin)),
          .ranges = memory.keep(std::move(ranges))};
}

}  // namespace

VisitRule visit_rule(const MaskRule& rule) {
  const bool full = rule.sparsity == MaskRule::Sparsity::full;
  VisitRule out{.causal = rule.causal, .limited = !full || rule.window > 0, .patterned = !full};
  out.opens = rule.sinks > 0 || rule.sparsity == MaskRule::Sparsity::fixed;
  if (rule.sparsity != MaskRule::Sparsity::fixed)
    out.reach = static_cast<int32_t>(std::min(rule.window, kLargest));
  return out;
}

int32_t visit_pattern_id(const MaskRule& rule, int64_t position) {
  switch (rule.sparsity) {
    case MaskRule::Sparsity::full:
      return 0;
    case MaskRule::Sparsity::strided:
      return static_cast<int32_t>((position % rule.stride + rule.stride) % rule.stride);
    case MaskRule::Sparsity::fixed:
      return static_cast<int32_t>(position / rule.block);
  }
  return 0;
}

int32_t visit_open(const MaskRule& rule, int64_t position) {
  const bool summary = rule.sparsity == MaskRule::Sparsity::fixed &&
                       position % rule.block >= rule.block - rule.summary;
  return (position < rule.sinks ? TokenColumns::kOpenBefore : 0) |
         (summary ? TokenColumns::kOpenAlways : 0);
}

Visits make_visits(const MaskRule& rule, std::span<const TokenPlace> queries,
                   std::span<const TokenPlace> keys, const TileSizes& sizes) {
  Visits out;
  out.sizes = sizes;
  out.queries = std::ssize(queries);
  out.keys = std::ssize(keys);
  out.ordered = in_order(queries) && in_order(keys);
  out.rule = visit_rule(rule);
  Labels labels;
  PlanMemory& memory = out.memory;
  out.query = columns_of(rule, queries, labels, sizes.keys, -1, memory);
  out.key = columns_of(rule, keys, labels, sizes.keys, -2, memory);
  out.by_query = build_tile_ranges(rule, queries, keys, sizes.queries, sizes.tile, memory);
  out.by_key = turned(out.by_query, out.queries, out.keys, sizes.keys, memory);
  memory.pack(out);
  return out;
}

std::optional<RowVisits> row_visits(const MaskRule& rule, int64_t position,
                                    std::span<const KeyRange> runs) {
  if (rule.sparsity != MaskRule::Sparsity::full) return std::nullopt;
  const bool windowed = rule.window > 0;
  std::vector<KeyRange> seen;
  // Keys of a run at positions [from, to).
  const auto add = [&seen](const KeyRange& run, int64_t from, int64_t to) {
    const KeyRange part{std::max(run.begin, from - run.shift), std::min(run.end, to - run.shift),
                        run.shift};
    if (part.begin >= part.end) return;
    if (!seen.empty() && seen.back().shift == part.shift && seen.back().end >= part.begin) {
      seen.back().end = std::max(seen.back().end, part.end);
    } else {
      seen.push_back(part);
    }
  };
  const int64_t before = rule.causal ? position + 1 : kLargest;  // exclusive
  for (const KeyRange& run : runs) {
    // A sink is seen from its own position on, whatever the window (mask_rule.h).
    if (windowed && rule.sinks > 0) add(run, -kLargest, std::min(rule.sinks, position + 1));
    add(run, windowed ? position - rule.window + 1 : -kLargest,
        windowed ? std::min(before, position + rule.window) : before);
  }
  if (seen.size() > 2) return std::nullopt;
  RowVisits out{.position = position, .near = {}, .far = {}};
  if (!seen.empty()) out.near = seen.back();
  if (seen.size() == 2) out.far = seen.front();
  return out;
}

}  // namespace fovea
