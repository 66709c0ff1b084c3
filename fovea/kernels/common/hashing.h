// Hash tables over keys, in the form that kernels read (MagicPIG, spec 4.5).
//
// A key's hash in one table is `bits` signs of products with Gaussian directions. A table holds the
// keys of a region by bucket, which are the leading bits of their hash. A query reads one bucket of
// every table, each from a different place of memory. So a bucket is one cache line, or several
// where hashes are too short for the number of keys. Entries that do not fit lie elsewhere.
//
//   bucket   count, first (BucketHead)  entry  entry  ...      full() entries at most
//   entry    a key, counted from the region's first; above it the other bits of its hash
//
// Places without a key hold numbers behind the last key where entries have room for such: a reader
// may then count all places of a bucket.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fovea::kernels {

/// Directions that are multiplied with a row at a time: signs of a panel are one word.
constexpr int64_t kHashPanel = 32;
/// Cells of a curve of log-weights for either sign of the cosine.
constexpr int64_t kWeightCells = 512;

/// The numbers that the tables of all key heads share.
struct HashRule {
  int64_t tables = 0, bits = 0, head_dim = 0;
  /// [panels()][head_dim][kHashPanel]: number l bits + n is bit n of table l; the last panel is
  /// filled up with 0.
  const float* directions = nullptr;
  /// The log-weight of a key by its cosine x to the query, [2][kWeightCells + 1][2]. The axes are:
  /// - the sign: x >= 0, then x < 0
  /// - node n, at w = (1 - |x|)^(1/4) = n / kWeightCells
  /// - the value, and the derivative by w times the width of a cell
  ///
  /// Cubics join the nodes.
  const float* log_weights = nullptr;

  int64_t panels() const { return (tables * bits + kHashPanel - 1) / kHashPanel; }
};

struct BucketHead {
  uint32_t count = 0;  ///< of all entries
  uint32_t first = 0;  ///< of those beyond full(), among the table's
};

/// Sizes that follow from the number of keys.
struct BucketLayout {
  int64_t bits = 0;         ///< of a hash that choose the bucket
  int64_t shift = 0;        ///< the others
  int64_t key_bits = 0;     ///< of an entry that are the key
  int64_t entry_bytes = 2;  ///< 2, 4 or 8
  int64_t bytes = 0;        ///< of a bucket: whole cache lines
  int64_t spare = 0;        ///< numbers from `keys` on that fill buckets up; 0: they stay unfilled

  /// `keys` is 1 or more.
  BucketLayout(const HashRule& rule, int64_t keys);
  BucketLayout() = default;
  int64_t buckets() const { return int64_t{1} << bits; }
  /// Entries that fit into a bucket.
  int64_t full() const { return (bytes - static_cast<int64_t>(sizeof(BucketHead))) / entry_bytes; }
};

/// The tables of one key head over keys [begin, end).
struct HashTable {
  int64_t begin = 0, end = 0;
  BucketLayout layout;
  const std::byte* buckets = nullptr;   ///< [tables][buckets()], aligned to cache lines
  const std::byte* more = nullptr;      ///< entries that do not fit, table by table
  const int64_t* more_begin = nullptr;  ///< [tables]: those of a table
  const float* centre = nullptr;        ///< [head_dim]: the mean of the keys
  const float* lengths = nullptr;       ///< by key from 0: of the centred key

  /// Numbers that entries name: keys, and spare ones.
  int64_t counted() const { return end - begin + layout.spare; }
};

/// Makes the buckets of `keys` keys, 1 or more, by their hashes.
class BucketFill {
 public:
  /// Hash of key n in table l: hashes[n tables + l].
  BucketFill(const HashRule& rule, int64_t keys, const int32_t* hashes);

  const BucketLayout& layout() const { return layout_; }
  int64_t bucket_bytes() const { return tables_ * layout_.buckets() * layout_.bytes; }
  int64_t more_bytes() const { return more_begin_.back() * layout_.entry_bytes; }
  /// [tables + 1]
  const std::vector<int64_t>& more_begin() const { return more_begin_; }
  /// Fills memory of these sizes. Entries are in the order of the keys.
  void write(std::byte* buckets, std::byte* more) const;

 private:
  template <class Entry>
  void write_as(std::byte* buckets, std::byte* more) const;

  int64_t tables_, keys_;
  const int32_t* hashes_;
  BucketLayout layout_;
  std::vector<uint32_t> counts_;  // [tables][buckets]
  std::vector<int64_t> more_begin_;
};

}  // namespace fovea::kernels
