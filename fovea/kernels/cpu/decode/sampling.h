// Attention of one query over keys that hash tables sample, on the CPU (MagicPIG, spec 4.5;
// kernels/common/sampling.h).
//
//   hashes of all query heads     panels of directions against a few rows, signs as bits
//   per head:  find               one bucket a table; keys met twice are read
//              q . k              of these and of the keys that are always read
//              e^(logit - top)    sampled keys with their log-weight
//              sum of w v
//
// In a text every row has a centre of its own, and its hashes are compared pair by pair, 32 keys a
// word of bits:
//
//   per table, 16 rows, 512 keys:   side bits of the keys, one word a 32 keys and direction
//                                   differ |= side ^ the query's,  a word operation for 32 pairs
//
// The reads of a head are scattered over memory, so buckets, keys and values are prefetched.
// Results are the same bits for any number of threads (OpenMP).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/kernels/common/sampling.h"

namespace fovea::kernels {

template <class T>
void run(const SampledDecode<T>& p);
template <class T>
void run(const SampledRows<T>& p);
void run(const RowHashes& p);
void run(const CentredHashes& p);
void run(const CollidingKeys& p);
/// As CollidingKeys; returns their number.
int64_t find_twice(const HashRule& rule, const HashTable& table, const int32_t* hashes,
                   uint8_t* counts, int32_t* found);

/// Keys and rows that are compared together: the keys' products of one table stay in the
/// first-level cache for these rows.
constexpr int64_t kAskedKeys = 512, kAskedRows = 16;
/// A part of CentredHashes: `words` words of keys from key `begin` on, at most kAskedKeys.
struct AskedPart {
  int64_t first_row = 0, rows = 0, begin = 0, words = 0;
};

/// One head's products, sampled keys first.
struct SampledProducts {
  float* products = nullptr;  ///< [count]: q . k; then weights e^(logit - top)
  const int32_t* list = nullptr;
  int64_t count = 0, sampled = 0;
  float scale = 1.0f;
  float with_centre = 0.0f, query_length = 0.0f;  ///< q . centre, |q|
  const float* lengths = nullptr;                 ///< as in HashTable
  const float* log_weights = nullptr;             ///< as in HashRule
};
struct WeightTotal {
  float top = 0.0f, total = 0.0f;  ///< largest logit; sum of the weights
};

/// The functions of one instruction set, one thread.
struct SamplingTable {
  /// Bit n of words[row][n / kHashPanel] = row . direction n > 0; words: [count][panels() + 1].
  void (*signs)(const HashRule& rule, const float* rows, int64_t count, uint32_t* words);
  WeightTotal (*weights)(const SampledProducts& p);
  /// first + n of all n below `keys` with counts[n] of 2 or more, in order. Returns their number;
  /// writes up to kFoundRoom numbers behind them.
  int64_t (*counted_twice)(const uint8_t* counts, int64_t keys, int32_t first, int32_t* found);
  /// Fills the words of a part, without regard to `ends`.
  void (*collisions)(const CentredHashes& p, const AskedPart& part);
};
/// That of chosen_isa().
const SamplingTable& sampling_table();

}  // namespace fovea::kernels
