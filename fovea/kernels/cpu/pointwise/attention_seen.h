// Finds the pairs of a forward tile that are seen: by the tile's ends, or pair by pair.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/pointwise/attention_tile.h"

namespace fovea::kernels {
namespace {

/// The rows of a tile against a panel of keys, or against one of its halves: N vectors of keys from
/// key `key` on. Panels and rows stand document by document where `ordered`.
template <class T, int tall = kRows>
class TileMask {
 public:
  explicit TileMask(const ForwardBlock<T>& block)
      : b_(block),
        tiles_(block.rows),
        banded_(block.ordered && has_bands(block.rule)),
        wide_(block.key_places.members_high != nullptr) {
    if (block.rule.members != MemberRule::meet_or_near || block.rule.opens) return;
    for (int64_t row = 0; row < block.rows; ++row) {
      some_low_[tiles_.of(row)] |= block.members_low[row];
      if (wide_) some_high_[tiles_.of(row)] |= block.members_high[row];
    }
  }

  bool compares() const { return b_.rule.members != MemberRule::ignored; }
  /// Memberships alone decide in ranges of kind `compared`.
  bool sets_decide(int g) const { return tiles_.first(g + 1) <= b_.rows && !b_.rule.opens; }

  FOVEA_INLINE Cover cover(int g, int64_t key, int from = 0, int to = 2) const {
    if (!banded_) return Cover::unknown;
    const int64_t first = tiles_.first(g), next = tiles_.first(g + 1);
    const int64_t begin = key + from * kLanes, end = key + to * kLanes - 1,
                  last = (next < b_.rows ? next : b_.rows) - 1;
    const int32_t* const position = b_.key_places.position;
    const int32_t document = b_.document[first];
    if (b_.document[last] != document || b_.key_places.document[begin] != document ||
        b_.key_places.document[end] != document)
      return Cover::unknown;
    return cover_of(b_.rule, int64_t{b_.position[first]} - position[end],
                    int64_t{b_.position[last]} - position[begin], b_.key_places.open[begin],
                    b_.key_places.open[end]);
  }

  /// By memberships alone, of a full row tile; false if no pair is seen.
  template <int R>
  FOVEA_INLINE bool by_sets(int g, int64_t key, Lanes (&seen)[R][2]) const {
    return wide_ ? by_sets<true>(g, key, seen) : by_sets<false>(g, key, seen);
  }

  /// By distances of tokens in one document, and memberships where the rule compares them.
  template <int R, int N>
  FOVEA_INLINE void by_band(int64_t first, int64_t key, Lanes (&seen)[R][N]) const {
    if (compares())
      return wide_ ? compare<true>(first, key, seen) : compare<false>(first, key, seen);
    const int32_t reach = b_.rule.limited ? b_.rule.reach : kAnyDistance;
    const int32_t* const position = b_.key_places.position + key;
    for (int v = 0; v < N; ++v) {
      const Int keys = load(position + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        seen[r][v] = lanes_below(broadcast(b_.position[first + r]) - keys, reach);
    }
  }

  /// By the whole rule; false if no pair is seen.
  template <int R>
  FOVEA_INLINE bool by_pairs(int64_t first, int64_t key, Lanes (&seen)[R][2]) const {
    const LanePlaces low = places_at(b_.key_places, key),
                     high = places_at(b_.key_places, key + kLanes);
    Lanes all{};
    for (int r = 0; r < R; ++r) {
      const int64_t row = first + r;
      if (row >= b_.rows) {
        seen[r][0] = seen[r][1] = Lanes{};
        continue;
      }
      LanePlaces query{broadcast(b_.position[row]), broadcast(b_.document[row]),
                       broadcast(b_.pattern_id[row]), Int{}};
      if (compares()) {
        query.members_low = broadcast(b_.members_low[row]);
        query.members_high = broadcast(b_.members_high[row]);
      }
      seen[r][0] = lanes_of(seen_lanes(b_.rule, query, low));
      seen[r][1] = lanes_of(seen_lanes(b_.rule, query, high));
      all |= seen[r][0] | seen[r][1];
    }
    return any(all);
  }

 private:
  template <bool wide>
  FOVEA_INLINE LanePlaces members_at(int64_t key) const {
    LanePlaces at;
    at.members_low = load(b_.key_places.members_low + key);
    if (wide) at.members_high = load(b_.key_places.members_high + key);
    return at;
  }
  template <bool wide>
  FOVEA_INLINE Lanes common(int64_t row, const LanePlaces& keys) const {
    return meet_lanes(wide, broadcast(b_.members_low[row]),
                      wide ? broadcast(b_.members_high[row]) : Int{}, keys);
  }

  template <bool wide, int R>
  FOVEA_INLINE bool by_sets(int g, int64_t key, Lanes (&seen)[R][2]) const {
    const LanePlaces low = members_at<wide>(key), high = members_at<wide>(key + kLanes);
    const Int some_low = broadcast(some_low_[g]), some_high = broadcast(some_high_[g]);
    if (!any(meet_lanes(wide, some_low, some_high, low) |
             meet_lanes(wide, some_low, some_high, high)))
      return false;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      seen[r][0] = common<wide>(tiles_.first(g) + r, low);
      seen[r][1] = common<wide>(tiles_.first(g) + r, high);
    }
    return true;
  }

  template <bool wide, int R, int N>
  FOVEA_INLINE void compare(int64_t first, int64_t key, Lanes (&seen)[R][N]) const {
    for (int v = 0; v < N; ++v) {
      const LanePlaces keys = members_at<wide>(key + v * kLanes);
      const Int position = load(b_.key_places.position + key + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        seen[r][v] = seen_in_band(b_.rule, broadcast(b_.position[first + r]) - position,
                                  common<wide>(first + r, keys));
    }
  }

  const ForwardBlock<T>& b_;
  const RowTiles<tall> tiles_;
  const bool banded_, wide_;
  int32_t some_low_[kQueryBlock / kRows] = {}, some_high_[kQueryBlock / kRows] = {};
};

}  // namespace
}  // namespace fovea::kernels
