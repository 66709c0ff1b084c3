// Tile ranges from a mask rule.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/tile_ranges.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace fovea {
namespace {

enum class Tile { none, some, all };

// The answer by looking at every pair.
Tile scan(const MaskRule& rule, std::span<const TokenPlace> queries,
          std::span<const TokenPlace> keys) {
  bool any = false, all = true;
  for (const TokenPlace& query : queries) {
    for (const TokenPlace& key : keys) {
      const bool seen = allowed(rule, query, key);
      any |= seen;
      all &= seen;
      if (any && !all) return Tile::some;
    }
  }
  return any ? Tile::all : Tile::none;
}

// Runs: one document, positions ascending by one. Distances between two runs form an interval.
using Runs = std::vector<std::span<const TokenPlace>>;
// A tile of more runs is scanned pair by pair.
constexpr size_t kMostRuns = 4;

Runs runs_of(std::span<const TokenPlace> places) {
  Runs runs;
  size_t begin = 0;
  for (size_t n = 1; n <= places.size(); ++n) {
    if (n < places.size() && places[n].document == places[n - 1].document &&
        places[n].position == places[n - 1].position + 1)
      continue;
    if (runs.size() == kMostRuns) return {};
    runs.push_back(places.subspan(begin, n - begin));
    begin = n;
  }
  return runs;
}

// Closed form for windows inside runs; sinks and sparse patterns are scanned unless distance alone
// decides.
Tile classify_runs(const MaskRule& rule, std::span<const TokenPlace> queries,
                   std::span<const TokenPlace> keys) {
  if (queries.front().document != keys.front().document) return Tile::none;
  const int64_t nearest = queries.front().position - keys.back().position;   // smallest i - j
  const int64_t farthest = queries.back().position - keys.front().position;  // largest i - j
  if (rule.causal && farthest < 0) return Tile::none;
  const bool windowed = rule.window > 0;
  const bool plain = rule.sparsity == MaskRule::Sparsity::full;
  const bool before = !rule.causal || nearest >= 0;
  const bool near =
      !windowed || (farthest < rule.window && (rule.causal || -nearest < rule.window));
  if (plain && before && near) return Tile::all;
  const bool sinks_elsewhere = rule.sinks == 0 || keys.front().position >= rule.sinks;
  const bool outside =
      windowed && (nearest >= rule.window || (!rule.causal && -farthest >= rule.window));
  if (plain && outside && sinks_elsewhere) return Tile::none;
  if (plain && sinks_elsewhere)
    return Tile::some;  // the tile crosses the diagonal or the window's edge
  return scan(rule, queries, keys);
}

struct TileSide {
  std::span<const TokenPlace> places;
  Runs runs;  // none: too many
};

Tile classify(const MaskRule& rule, const TileSide& queries, const TileSide& keys) {
  if (queries.runs.empty() || keys.runs.empty()) return scan(rule, queries.places, keys.places);
  bool any = false, all = true;
  for (const auto& query : queries.runs) {
    for (const auto& key : keys.runs) {
      const Tile tile = classify_runs(rule, query, key);
      if (tile == Tile::some) return tile;
      any |= tile == Tile::all;
      all &= tile == Tile::all;
      if (any && !all) return Tile::some;
    }
  }
  return any ? Tile::all : Tile::none;
}

std::vector<TileSide> cut(std::span<const TokenPlace> places, int64_t size) {
  std::vector<TileSide> tiles;
  for (int64_t begin = 0; begin < std::ssize(places); begin += size) {
    const auto tile = places.subspan(begin, std::min<int64_t>(size, std::ssize(places) - begin));
    tiles.push_back({tile, runs_of(tile)});
  }
  return tiles;
}

// Tiles of keys that some query may see: [0, sinks) and [begin, end).
struct Candidates {
  int64_t sinks = 0, begin = 0, end = 0;
};

// All tiles, except where keys are one run and the queries are, too: then distances bound them.
Candidates candidates(const MaskRule& rule, const TileSide& queries, const Runs& keys,
                      int64_t tiles, int64_t size) {
  if (!rule.causal || rule.sparsity != MaskRule::Sparsity::full || keys.size() != 1 ||
      queries.runs.size() != 1)
    return {.end = tiles};
  const int64_t first = keys[0].front().position;
  const auto tile_of = [&](int64_t position) {
    return std::clamp<int64_t>((position - first) / size, 0, tiles - 1);
  };
  if (queries.places.back().position < first) return {};
  const int64_t window =
      rule.window > 0 ? rule.window : queries.places.front().position - first + 1;
  return {.sinks = rule.sinks > first ? tile_of(rule.sinks - 1) + 1 : 0,
          .begin = tile_of(queries.places.front().position - window + 1),
          .end = tile_of(queries.places.back().position) + 1};
}

}  // namespace

TileRanges build_tile_ranges(const MaskRule& rule, std::span<const TokenPlace> queries,
                             std::span<const TokenPlace> keys, int64_t query_block,
                             int64_t key_tile, PlanMemory& memory) {
  std::vector<int64_t> block_begin{0};
  std::vector<TileRange> ranges;
  const std::vector<TileSide> key_tiles = cut(keys, key_tile);
  const Runs key_runs = runs_of(keys);
  for (const TileSide& query : cut(queries, query_block)) {
    const size_t first = ranges.size();
    const Candidates seen = candidates(rule, query, key_runs, std::ssize(key_tiles), key_tile);
    for (int64_t n = seen.sinks > 0 ? 0 : seen.begin; n < seen.end; ++n) {
      if (n >= seen.sinks && n < seen.begin) n = seen.begin;
      const TileSide& key = key_tiles[static_cast<size_t>(n)];
      const int64_t begin = n * key_tile, end = begin + std::ssize(key.places);
      const Tile tile = classify(rule, query, key);
      const TileRange::Kind kind =
          tile == Tile::all ? TileRange::Kind::full : TileRange::Kind::partial;
      const bool extends =
          ranges.size() > first && ranges.back().key_end == begin && ranges.back().kind == kind;
      if (tile != Tile::none && extends) {
        ranges.back().key_end = end;
      } else if (tile != Tile::none) {
        ranges.push_back({.key_begin = begin, .key_end = end, .kind = kind});
      }
    }
    block_begin.push_back(std::ssize(ranges));
  }
  return {.query_block = query_block,
          .block_begin = memory.keep(std::move(block_begin)),
          .ranges = memory.keep(std::move(ranges))};
}

}  // namespace fovea
