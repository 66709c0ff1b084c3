// Visibility of hard Focus in two passes: over the groups of sorted entries, and over the rest in
// the order of the text.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/attention/band.cuh"

namespace fovea::kernels::cuda {

// Focus, pass over groups: tile rows are entries sorted by group, causal inside a group. With
// several groups per token a pair counts only in the lowest common group (kSeveral).
template <bool kSeveral>
struct GroupSegments {
  static constexpr bool kMerges = false;
  static constexpr bool kAddsToKeys = true;
  static constexpr bool kPartialOutput = true;
  static constexpr bool kHasSinks = false;

  FOVEA_DEVICE static int64_t plan(const Problem& p, const Place& at) {
    return at.b * p.plan_batch + at.g * p.plan_head;
  }
  FOVEA_DEVICE static int segment(const Problem& p, const Place& at, int i) {
    return load_read_only(p.segment_start + plan(p, at) * (p.entries / kEntryAlign) +
                          i / kEntryAlign);
  }
  FOVEA_DEVICE static int segment_stop(const Problem& p, const Place& at, int i) {
    return load_read_only(p.segment_end + plan(p, at) * (p.entries / kEntryAlign) +
                          i / kEntryAlign);
  }
  FOVEA_ANYWHERE static int rows(const Problem& p) { return static_cast<int>(p.entries); }
  FOVEA_ANYWHERE static int keys(const Problem& p) { return static_cast<int>(p.entries); }
  FOVEA_DEVICE static int query_row(const Problem& p, const Place& at, int i) {
    return load_read_only(p.entry_token + plan(p, at) * p.entries + i);
  }
  FOVEA_DEVICE static int key_row(const Problem& p, const Place& at, int j) {
    return query_row(p, at, j);
  }
  FOVEA_DEVICE static int output_row(const Problem& p, const Place& at, int i) {
    return load_read_only(p.entry_row + plan(p, at) * p.entries + i);
  }

  static constexpr bool kSets = kSeveral;
  struct Row {
    int entry;
    uint64_t hides;
  };
  struct Key {
    uint64_t set;
  };
  FOVEA_DEVICE static uint64_t row_set(const Problem& p, const Place& at, int i) {
    return kSeveral ? load_read_only(p.entry_hides + plan(p, at) * p.entries + i) : 0;
  }
  FOVEA_DEVICE static uint64_t key_set(const Problem& p, const Place& at, int j) {
    return kSeveral ? load_read_only(p.entry_set + plan(p, at) * p.entries + j) : 0;
  }
  FOVEA_DEVICE static Row row(const Problem&, const Place&, int i, uint64_t set) {
    return {i, set};
  }
  FOVEA_DEVICE static Row row(const Problem& p, const Place& at, int i) {
    return {i, row_set(p, at, i)};
  }
  FOVEA_DEVICE static Key key(const Problem& p, const Place& at, int j) {
    return {key_set(p, at, j)};
  }
  FOVEA_DEVICE static bool sees(const Problem&, const Row& r, Key key, int j) {
    return j <= r.entry && (!kSeveral || (key.set & r.hides) == 0);
  }
  FOVEA_DEVICE static int distance(const Problem& p, const Place& at, int i, int j) {
    return query_row(p, at, i) - key_row(p, at, j);
  }
  FOVEA_DEVICE static TileWalk key_tiles(const Problem& p, const Place& at, int i0, int BM,
                                         int BN) {
    const int start = segment(p, at, i0);
    if (start < 0) return {0, 0, 0, 0};
    const int end = min_of(i0 + BM, segment_stop(p, at, i0));
    return {0, 0, start / BN, max_of(0, tiles_for(end, BN) - start / BN)};
  }
  FOVEA_DEVICE static TileWalk query_tiles(const Problem& p, const Place& at, int j0, int BM,
                                           int BN) {
    if (segment(p, at, j0) < 0) return {0, 0, 0, 0};
    const int end = segment_stop(p, at, j0);
    return {0, 0, j0 / BM, max_of(0, tiles_for(end, BM) - j0 / BM)};
  }
  FOVEA_DEVICE static bool full(const Problem&, const Place&, int i0, int j0, int, int BN) {
    return !kSeveral && j0 + BN <= i0 + 1;
  }
};

// Focus, local pass: i-j < window or j < sinks, without the pairs that share a group. Its epilogue
// merges the partial results of the pass over groups.
struct LocalRest : Band<Edge::causal, true, false> {
  static constexpr bool kMerges = true;
  static constexpr bool kAddsToKeys = true;
  using Base = Band<Edge::causal, true, false>;

  static constexpr bool kSets = true;
  struct Row {
    Base::Row band;
    uint64_t set;
  };
  struct Key {
    uint64_t set;
  };
  FOVEA_DEVICE static uint64_t set_of(const Problem& p, const Place& at, int token) {
    return load_read_only(p.membership + at.b * p.membership_batch + at.g * p.membership_head +
                          min_of(token, p.keys - 1));
  }
  FOVEA_DEVICE static int slots_of(const Problem& p, const Place& at, int token) {
    return min_of(popcount64(set_of(p, at, token)), p.slots);
  }
  FOVEA_DEVICE static uint64_t row_set(const Problem& p, const Place& at, int i) {
    return set_of(p, at, i);
  }
  FOVEA_DEVICE static uint64_t key_set(const Problem& p, const Place& at, int j) {
    return set_of(p, at, j);
  }
  FOVEA_DEVICE static Row row(const Problem& p, const Place& at, int i, uint64_t set) {
    return {Base::row(p, at, i), set};
  }
  FOVEA_DEVICE static Row row(const Problem& p, const Place& at, int i) {
    return row(p, at, i, set_of(p, at, i));
  }
  FOVEA_DEVICE static Key key(const Problem& p, const Place& at, int j) {
    return {set_of(p, at, j)};
  }
  FOVEA_DEVICE static bool sees(const Problem& p, const Row& r, Key key, int j) {
    return Base::sees(p, r.band, {}, j) && (key.set & r.set) == 0;
  }
  // Every query walks over the keys of the sinks, which would keep one block busy for long. Part -1
  // of the walk of such a key tile is the window; parts 0, 1, ... are kPartTiles query tiles each.
  static constexpr int kPartTiles = 16;
  FOVEA_ANYWHERE static int sink_tiles(const Problem& p, int BN) {
    return ((p.sinks < p.keys ? p.sinks : p.keys) + BN - 1) / BN;
  }
  FOVEA_ANYWHERE static int parts(const Problem& p, int BM) {
    return (p.queries + BM * kPartTiles - 1) / (BM * kPartTiles);
  }
  FOVEA_DEVICE static TileWalk part_of(const Problem& p, TileWalk walk, int part, int j0, int BM,
                                       int BN) {
    if (j0 >= p.sinks) return walk;
    const int end = min_of(p.queries, min_of(j0 + BN, p.keys) - 1 + p.window - p.query_offset);
    const int near = min_of(walk.count, max_of(0, tiles_for(end, BM) - walk.first1));
    if (part < 0) {
      walk.count = near;
    } else {
      walk.first1 += near + part * kPartTiles;
      walk.count = max_of(0, min_of(kPartTiles, walk.count - near - part * kPartTiles));
    }
    return walk;
  }
  FOVEA_DEVICE static bool full(const Problem&, const Place&, int, int, int, int) { return false; }
};

}  // namespace fovea::kernels::cuda
