// The pairs of a strip that are seen, as one word of bits a row and step, shared by all heads.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/mixing/mixing_table.h"
#include "fovea/kernels/cpu/pointwise/attention_tile.h"

namespace fovea::kernels {
namespace {

constexpr int kStepVectors = static_cast<int>(kStepKeys) / kLanes;
constexpr uint64_t kAllSeen = ~uint64_t{0};

/// The lanes of vector v of a step.
FOVEA_INLINE Lanes lanes_of(uint64_t word, int v) { return lanes_of_bits(word >> (v * kLanes)); }

/// Bits [from, to) of a word.
FOVEA_INLINE uint64_t bits_between(int64_t from, int64_t to) {
  const uint64_t below = to >= kStepKeys ? kAllSeen : (uint64_t{1} << to) - 1;
  return below & ~((uint64_t{1} << from) - 1);
}

/// Which keys `lag` before this step's are seen, from the words of this step and the one before.
FOVEA_INLINE uint64_t lagging(uint64_t word, uint64_t before, int64_t lag) {
  return lag == 0 ? word : (word << lag) | (before >> (kStepKeys - lag));
}

/// The words of the rows of a strip, [steps of the strip][kStripRows]. Rows that do not exist see
/// nothing.
template <class T>
class SeenWords {
 public:
  SeenWords(const MixingStrips<T>& task, uint64_t* words) : t_(task), words_(words) {}

  /// Fills the words of one strip; rows before `first` count as rows that see nothing.
  void fill(int64_t strip, int64_t first) {
    steps_ = t_.steps.steps + t_.steps.begin[strip];
    count_ = t_.steps.begin[strip + 1] - t_.steps.begin[strip];
    for (int64_t n = 0; n < count_ * kStripRows; ++n) words_[n] = 0;
    const int64_t begin = strip * kStripRows + first;
    const int64_t end =
        (strip + 1) * kStripRows < t_.queries ? (strip + 1) * kStripRows : t_.queries;
    for (int64_t row = begin; row < end;) {
      const int64_t block = row / kQueryBlock, next = (block + 1) * kQueryBlock;
      const int64_t last = next < end ? next : end;
      fill_rows(block, row, last, strip * kStripRows);
      row = last;
    }
  }

  int64_t count() const { return count_; }
  int64_t step(int64_t n) const { return steps_[n]; }
  /// The step before it in the list is the one before it among the keys.
  bool follows(int64_t n) const { return n > 0 && steps_[n - 1] == steps_[n] - 1; }
  const uint64_t* of(int64_t n) const { return words_ + n * kStripRows; }

  /// Words of what enters `lag` keys late.
  void lagging(int64_t n, int64_t lag, uint64_t* words) const {
    const bool linked = follows(n);
    for (int64_t r = 0; r < kStripRows; ++r) {
      words[r] = kernels::lagging(of(n)[r], linked ? of(n - 1)[r] : 0, lag);
    }
  }

 private:
  // Rows [begin, end) of one block of queries.
  void fill_rows(int64_t block, int64_t begin, int64_t end, int64_t strip_row) {
    const TileRange* range = t_.ranges + t_.range_begin[block];
    const TileRange* const last = t_.ranges + t_.range_begin[block + 1];
    for (int64_t n = 0; n < count_; ++n) {
      const int64_t key = steps_[n] * kStepKeys;
      while (range != last && range->key_end <= key) ++range;
      for (const TileRange* at = range; at != last && at->key_begin < key + kStepKeys; ++at) {
        const int64_t from = at->key_begin > key ? at->key_begin - key : 0;
        const int64_t to = at->key_end - key < kStepKeys ? at->key_end - key : kStepKeys;
        for (int64_t row = begin; row < end; ++row) {
          uint64_t seen = bits_between(from, to);
          if (at->kind != TileRange::Kind::full || t_.rule.members != MemberRule::ignored)
            seen &= compared(row, key, from, to);
          words_[n * kStripRows + row - strip_row] |= seen;
        }
      }
    }
  }

  // By the places of row and keys, for the vectors that hold keys [from, to) of the step.
  uint64_t compared(int64_t row, int64_t key, int64_t from, int64_t to) const {
    const LanePlaces query = place_of(t_.query_places, row);
    uint64_t bits = 0;
    for (int64_t at = from / kLanes * kLanes; at < to; at += kLanes)
      bits |= bits_of(seen_lanes(t_.rule, query, places_at(t_.key_places, key + at))) << at;
    return bits;
  }

  const MixingStrips<T>& t_;
  uint64_t* words_;
  const int32_t* steps_ = nullptr;
  int64_t count_ = 0;
};

}  // namespace
}  // namespace fovea::kernels
