// Attention of one query over keys that hash tables sample, on the CPU (MagicPIG, spec 4.5).
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

/// Rows of a text against the keys of one key head. Row r has the keys before
/// first_length + r, its own last. Each head reads of [begin, ends[r]) the keys that `twice` names,
/// and all others.
template <class T>
struct SampledRows {
  int64_t heads = 0, rows = 0, first_length = 0, head_dim = 0, value_dim = 0;
  const float* q = nullptr;            ///< [heads][rows][head_dim]
  const T *k = nullptr, *v = nullptr;  ///< of the key head
  int64_t key_row = 0, value_row = 0;  ///< from a key to the next
  const float* squares = nullptr;      ///< |k|^2 of every key
  const float* centres = nullptr;      ///< [rows][head_dim]: mean of the keys [begin, ends[r])
  int64_t begin = 0;
  const int64_t* ends = nullptr;       ///< [rows]
  const uint32_t* twice = nullptr;     ///< as in CentredHashes
  int64_t words = 0;                   ///< of a row
  const float* log_weights = nullptr;  ///< as in HashRule
  float scale = 1.0f;
  const float* tau = nullptr;  ///< [rows]: replaces `scale` by 1 / tau
  T* out = nullptr;            ///< head h of row r at h out_head + r out_row
  int64_t out_head = 0, out_row = 0;
  float* lse = nullptr;  ///< [heads][rows], heads at lse_head
  int64_t lse_head = 0;
  int64_t* read = nullptr;  ///< [heads][rows]: keys read
};
template <class T>
void run(const SampledRows<T>& p);

/// Hashes [count][tables] of rows [count][head_dim].
void hash_rows(const HashRule& rule, const float* rows, int64_t count, int32_t* hashes);

/// The keys that at least two of `hashes` [tables] find, in order, counted from 0; returns their
/// number. `counts`: table.counted() bytes; `found`: room for all of them and kFoundRoom
/// more.
inline constexpr int64_t kFoundRoom = 16;
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
  /// [heads][rows][words()]: bit i of word n is 1 where two tables agree on key kHashPanel n + i.
  uint32_t* twice = nullptr;

  int64_t hashes() const { return tables * bits; }
  int64_t words() const { return pitch / kHashPanel; }
  uint32_t* twice_of(int64_t head, int64_t row) const {
    return twice + (head * rows + row) * words();
  }
};
/// Keys and rows that are compared together: the keys' products of one table stay in the
/// first-level cache for these rows.
constexpr int64_t kAskedKeys = 512, kAskedRows = 16;
constexpr int64_t kMostHashBits = 32;
/// A part of CentredHashes: `words` words of keys from key `begin` on, at most kAskedKeys.
struct AskedPart {
  int64_t first_row = 0, rows = 0, begin = 0, words = 0;
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
  /// first + n of all n below `keys` with counts[n] of 2 or more, in order. Returns their number;
  /// writes up to kFoundRoom numbers behind them.
  int64_t (*counted_twice)(const uint8_t* counts, int64_t keys, int32_t first, int32_t* found);
  /// Fills the words of a part, without regard to `ends`.
  void (*collisions)(const CentredHashes& p, const AskedPart& part);
};
/// That of chosen_isa().
const SamplingTable& sampling_table();

}  // namespace fovea::kernels
