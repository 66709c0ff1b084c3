// Attention of one query over keys that hash tables sample, on the CPU (MagicPIG, spec 4.5).
//
//   hashes of all query heads     panels of directions against a few rows, signs as bits
//   per head:  find               one bucket a table; keys met twice are read
//              q . k              of these and of the keys that are always read
//              e^(logit - top)    sampled keys with their log-weight
//              sum of w v
//
// In a text every row has a centre of its own, and its hashes are compared pair by pair.
//
// The reads of a head are scattered over memory, so buckets, keys and values are prefetched.
// Results are the same bits for any number of threads (OpenMP).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/kernels/common/contract.h"
#include "fovea/kernels/common/hashing.h"

namespace fovea::kernels {

/// One query a sequence. A head reads the keys that at least two of its hashes find, and those
/// outside [begin, end) of its table.
template <class T>
struct SampledDecode {
  AttentionSizes sizes;
  HeadRows<const T> q, k, v;
  HashRule rule;
  const HashTable* tables = nullptr;  ///< [batch][kv_heads]
  float scale = 1.0f;
  const float* tau = nullptr;  ///< [batch]: replaces `scale` by 1 / tau
  HeadRows<T> out;
  float* lse = nullptr;     ///< [batch][heads]
  int64_t* read = nullptr;  ///< [batch][heads]: keys read
};
template <class T>
void run(const SampledDecode<T>& p);

/// Hashes [count][tables] of rows [count][head_dim].
void hash_rows(const HashRule& rule, const float* rows, int64_t count, int32_t* hashes);

/// The keys that at least two of `hashes` [tables] find, counted from 0; returns their number.
/// `counts`: one byte a key of the table; `found`: room for all of them and one more.
int64_t find_twice(const HashRule& rule, const HashTable& table, const int32_t* hashes,
                   uint8_t* counts, int32_t* found);

/// The heads of one key head, whose rows see keys from centres of their own: a hash has bit n where
/// the key's product with direction n is above that of the row's centre.
struct CentredHashes {
  int64_t tables = 0, bits = 0, heads = 0, rows = 0;
  const float* of_keys = nullptr;       ///< [tables * bits][pitch]
  int64_t pitch = 0;                    ///< of keys, a multiple of kHashPanel
  const float* of_centres = nullptr;    ///< [rows][tables * bits]
  const int32_t* of_queries = nullptr;  ///< [heads][rows][tables * bits]: -1 above 0, else 0
  const int64_t* ends = nullptr;        ///< [rows]: keys from here on are not asked for
  uint8_t* twice = nullptr;             ///< [heads][rows][pitch]: 1, where two tables agree, or 0

  int64_t hashes() const { return tables * bits; }
};
/// Fills `twice`, 0 for keys that are not asked for.
void find_collisions(const CentredHashes& p);

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
  /// A row against kHashPanel keys from `begin` on.
  void (*collisions)(const CentredHashes& p, int64_t row, int64_t begin);
};
/// That of chosen_isa().
const SamplingTable& sampling_table();
const SamplingTable& sampling_scalar();
const SamplingTable& sampling_avx2();
const SamplingTable& sampling_avx512();

}  // namespace fovea::kernels
