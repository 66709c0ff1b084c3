// Hash tables over keys, in the form that kernels read (MagicPIG, spec 4.5).
//
// A key's hash in one table is `bits` signs of products with Gaussian directions. A table holds the
// keys of a region ordered by bucket, which are the leading bits of their hash.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fovea::kernels {

/// Directions that are multiplied with a row at a time: signs of a panel are one word.
constexpr int64_t kHashPanel = 32;
/// Cells of a curve of log-weights for either sign of the cosine.
constexpr int64_t kWeightCells = 512;

/// What the tables of all key heads share.
struct HashRule {
  int64_t tables = 0, bits = 0, head_dim = 0;
  int64_t bucket_bits = 0;
  /// [panels()][head_dim][kHashPanel]: number l bits + n is bit n of table l; the last panel is
  /// filled up with 0.
  const float* directions = nullptr;
  /// The log-weight of a key by its cosine x to the query, [2][kWeightCells + 1][2]: at
  /// w = (1 - |x|)^(1/4) = n / kWeightCells its value, and its derivative by w times a cell's
  /// width; first for x >= 0, then for x < 0. Cubics join the nodes.
  const float* log_weights = nullptr;

  int64_t panels() const { return (tables * bits + kHashPanel - 1) / kHashPanel; }
  int64_t buckets() const { return int64_t{1} << bucket_bits; }
  /// How far a hash is shifted to give its bucket.
  int64_t shift() const { return bits - bucket_bits; }
};

/// The tables of one key head over keys [begin, end).
struct HashTable {
  int64_t begin = 0, end = 0;
  const int32_t* offsets = nullptr;  ///< [tables][buckets + 1]: the entries of each bucket
  const int32_t* entries = nullptr;  ///< [tables][end - begin]: keys, counted from `begin`
  const int32_t* hashes = nullptr;   ///< of the entries; null where a bucket is a whole hash
  const float* centre = nullptr;     ///< [head_dim]: the mean of the keys
  const float* lengths = nullptr;    ///< by key from 0: of the centred key
};

}  // namespace fovea::kernels
