// Attention of queries to keys that hash tables sample (MagicPIG, spec 4.5; tables: hashing.h).
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

/// Hashes [count][tables] of rows [count][head_dim].
struct RowHashes {
  HashRule rule;
  const float* rows = nullptr;
  int64_t count = 0;
  int32_t* hashes = nullptr;
};

/// The keys of one table's region that at least two hashes of a row find, in order, counted from 0.
struct CollidingKeys {
  HashRule rule;
  const HashTable* table = nullptr;
  const int32_t* hashes = nullptr;  ///< [tables]
  uint8_t* counts = nullptr;        ///< [table->counted()], to work in
  int32_t* found = nullptr;         ///< room for all keys and kFoundRoom more
  int64_t* count = nullptr;
};
inline constexpr int64_t kFoundRoom = 16;

/// Bits of a hash at most.
constexpr int64_t kMostHashBits = 32;

/// Hashes for the heads of one key head, whose rows see keys from centres of their own. A hash has
/// bit n where the key's product with direction n is above that of the row's centre.
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

}  // namespace fovea::kernels
