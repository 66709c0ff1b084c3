// Visibility policies: which pairs exist, which tiles to visit, and which rows a tile holds.
//
// A policy gives
//   rows(p), keys(p)          number of tile rows on both sides (entries for the pass over groups)
//   query_row, key_row        tile row -> row of the tensors (-1: padding)
//   key_tiles, query_tiles    the tiles a query tile (forward) or a key tile (backward) visits
//   Row, row(), Key, key(), sees()  the pair test, used in tiles that are not full
//   kHasSinks                 may every query see the first keys?
//   kSets, row_set, key_set   does the test take 64 bits of a row and of a key? Kernels may fetch
//   them
//                             ahead and give them to row() and Key
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cuda/attention/problem.h"
#include "fovea/kernels/cuda/device.cuh"

namespace fovea::kernels::cuda {

FOVEA_DEVICE int min_of(int a, int b) { return a < b ? a : b; }
FOVEA_DEVICE int max_of(int a, int b) { return a > b ? a : b; }
FOVEA_DEVICE int tiles_for(int rows, int size) { return (rows + size - 1) / size; }

// Where one block works.
struct Place {
  int b, h, g;
};

// Two ranges of tiles: [first0, first0 + count0) and then [first1, ...).
struct TileWalk {
  int first0, count0, first1, count;
  FOVEA_DEVICE int operator[](int n) const {
    return n < count0 ? first0 + n : first1 + (n - count0);
  }
};

// Rows of the tensors are the tile rows.
struct IdentityRows {
  FOVEA_ANYWHERE static int rows(const Problem& p) { return p.queries; }
  FOVEA_ANYWHERE static int keys(const Problem& p) { return p.keys; }
  FOVEA_DEVICE static int query_row(const Problem& p, const Place&, int i) {
    return i < p.queries ? i : -1;
  }
  FOVEA_DEVICE static int key_row(const Problem& p, const Place&, int j) {
    return j < p.keys ? j : -1;
  }
  // What the pair test must know of a key besides its place.
  static constexpr bool kSets = false;
  struct Key {};
  FOVEA_DEVICE static Key key(const Problem&, const Place&, int) { return {}; }
};

enum class Edge { none, causal };

// Causal band: optional sliding window with sinks, optional packed documents.
template <Edge kEdge, bool kWindow, bool kDocuments>
struct Band : IdentityRows {
  static constexpr bool kMerges = false;
  static constexpr bool kAddsToKeys = false;
  static constexpr bool kPartialOutput = false;
  static constexpr bool kHasSinks = kWindow;

  // Visible keys: [low, high) and the sinks [document, sinks_end).
  struct Row {
    int low, high, document, sinks_end;
  };
  FOVEA_DEVICE static int document(const Problem& p, const Place& at, int i) {
    if constexpr (!kDocuments) return 0;
    if (p.doc_start == nullptr) return 0;
    return load_read_only(p.doc_start + at.b * p.doc_batch + min_of(i, p.queries - 1));
  }
  FOVEA_DEVICE static Row row(const Problem& p, const Place& at, int i) {
    Row r{0, p.keys, 0, 0};
    const int position = p.query_offset + i;
    if constexpr (kEdge == Edge::causal) r.high = min_of(position + 1, p.keys);
    if constexpr (kDocuments) r.low = r.document = document(p, at, i);
    if constexpr (kWindow) {
      r.low = max_of(r.document, position - p.window + 1);
      r.sinks_end = r.document + p.sinks;
    }
    return r;
  }
  FOVEA_DEVICE static Row row(const Problem& p, const Place& at, int i, uint64_t) {
    return row(p, at, i);
  }
  FOVEA_DEVICE static bool sees(const Problem&, const Row& r, Key, int j) {
    bool in = j < r.high && (j >= r.low);
    if constexpr (kWindow) in |= j < r.high && j >= r.document && j < r.sinks_end;
    return in;
  }
  FOVEA_DEVICE static int distance(const Problem& p, const Place&, int i, int j) {
    return p.query_offset + i - j;
  }

  FOVEA_DEVICE static TileWalk key_tiles(const Problem& p, const Place& at, int i0, int BM,
                                         int BN) {
    const Row first = row(p, at, i0);
    const int high = row(p, at, min_of(i0 + BM, p.queries) - 1).high;
    TileWalk r;
    r.first1 = first.low / BN;
    r.count = max_of(0, tiles_for(high, BN) - r.first1);
    r.first0 = r.count0 = 0;
    if constexpr (kWindow) {
      r.first0 = first.document / BN;
      r.count0 =
          max_of(0, min_of(tiles_for(min_of(first.sinks_end, high), BN), r.first1) - r.first0);
      if (p.sinks == 0) r.count0 = 0;
      r.count += r.count0;
    }
    return r;
  }
  // Rows that see a key: the first is on the diagonal, the last is where the window or the
  // document of the last key ends.
  FOVEA_DEVICE static TileWalk query_tiles(const Problem& p, const Place& at, int j0, int BM,
                                           int BN) {
    const int last = min_of(j0 + BN, p.keys) - 1;
    const int first = kEdge == Edge::causal ? max_of(0, j0 - p.query_offset) : 0;
    int end = p.queries;
    if constexpr (kDocuments) {
      int low = first;  // first row whose document starts after the last key
      while (low < end) {
        const int middle = (low + end) / 2;
        if (document(p, at, middle) > last)
          end = middle;
        else
          low = middle + 1;
      }
    }
    if constexpr (kWindow) {
      bool sink = p.sinks > 0 && j0 < p.sinks;
      if constexpr (kDocuments) {
        if (p.sinks > 0) {
          const int a = j0 - p.query_offset, b = last - p.query_offset;
          if (a < 0)
            sink = true;
          else if (a < p.queries)
            sink = document(p, at, a) + p.sinks > j0 || document(p, at, b) != document(p, at, a);
        }
      }
      if (!sink) end = min_of(end, last + p.window - p.query_offset);
    }
    TileWalk r;
    r.first0 = r.count0 = 0;
    r.first1 = first / BM;
    r.count = max_of(0, tiles_for(max_of(end, 0), BM) - r.first1);
    return r;
  }
  FOVEA_DEVICE static bool full(const Problem& p, const Place& at, int i0, int j0, int BM, int BN) {
    const Row last = row(p, at, min_of(i0 + BM, p.queries) - 1);
    return j0 >= last.low && j0 + BN <= row(p, at, i0).high;
  }
};

}  // namespace fovea::kernels::cuda
