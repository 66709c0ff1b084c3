// Attention to a few keys more: rows whose attention to other keys is known take them
// into the same softmax, and their gradients. In place, by a pass of its own or, while rows are in
// the cache, by the kernels of the other keys (AttentionForward::few, AttentionBackward::few).
//
//   s_in = soft_cap(scale_i q_i . k_n)  of the keys that row i reads
//   new lse_i = ln(e^lse_i + sum_n e^s_in)
//   new out_i = e^(lse_i - new lse_i) out_i + sum_n e^(s_in - new lse_i) v_n
//
// For Longformer's global keys (spec 4.1) and StreamingLLM's start keys (spec 4.6): in tiles of the
// pointwise kernels few keys would cost as much as many. The other keys need no gradient of their
// own kind: theirs are those of a row with the new out and lse.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/kernels/common/contract.h"
#include "fovea/kernels/common/turn_sums.h"

namespace fovea::kernels {

/// Keys at most: what a row reads of them is one word.
constexpr int64_t kMostFewKeys = 64;

/// Floats from one row of gradients of few keys to the next.
FOVEA_INLINE constexpr int64_t few_pitch(int64_t width) { return (width + 15) / 16 * 16; }

/// Which keys the rows read: heads with the same rule share a set.
struct SeenSets {
  const uint64_t* rows = nullptr;        ///< [sets][queries]: bit n where the row reads key n
  const int32_t* set_of_head = nullptr;  ///< [batch][heads]

  /// The rows of a head, numbered through the batch.
  const uint64_t* of(int64_t head, int64_t queries) const {
    return rows + set_of_head[head] * queries;
  }
};

template <class T>
struct FewKeys {
  AttentionSizes sizes;  ///< keys: the few
  HeadRows<const T> q, k, v;
  const int64_t* key_rows = nullptr;  ///< [keys]: rows of k and v
  SeenSets seen;
  float scale = 1.0f;
  const float* tau = nullptr;  ///< [batch][queries]: replaces `scale` by 1 / tau
  float soft_cap = 0.0f;       ///< 0: none
  HeadRows<T> out;             ///< in place
  HeadRows<T> out_rest;        ///< the part of out that rounding took, in place; may be null
  float* lse = nullptr;        ///< [batch][heads][queries], in place; -inf where nothing was seen
};

/// Whose queries read the few keys: those that read the other keys, to whose gradients the few
/// keys' part is added, or queries of their own, whose gradients are written.
enum class FewQueries { shared, own };

template <class T>
struct FewKeysGradient {
  AttentionSizes sizes;
  HeadRows<const T> q, k, v, out, dout;  ///< out: of all keys together
  HeadRows<const T> out_rest;            ///< the part of out that rounding took; may be null
  const int64_t* key_rows = nullptr;
  SeenSets seen;
  float scale = 1.0f;
  const float* tau = nullptr;
  float soft_cap = 0.0f;
  const float* lse = nullptr;   ///< of all keys together
  const float* dlse = nullptr;  ///< may be null: zeros
  FewQueries queries = FewQueries::shared;
  HeadRows<T> dq;
  float* dtau = nullptr;  ///< [batch][heads][queries]; needs tau
  /// Where sums for dtau go instead: [batch][heads][queries][kTurnSums], added to. The caller knows
  /// those of the other keys.
  float* turns = nullptr;
  float *dk = nullptr, *dv = nullptr;  ///< [batch][kv_heads][keys][few_pitch(width)], written
};

/// The gradient of a few queries over many keys: the same with queries and keys exchanged. The
/// queries of a key head's query heads are kMostFewKeys at most.
template <class T>
struct FewQueriesGradient {
  AttentionSizes sizes;  ///< queries: the few
  HeadRows<const T> q, k, v, out;
  HeadRows<const T> out_rest;  ///< the part of out that rounding took; may be null
  HeadRows<const T> dout;
  const uint64_t* seen = nullptr;  ///< [keys]: bit n where query n reads the key
  float scale = 1.0f;
  const float* tau = nullptr;
  float soft_cap = 0.0f;
  const float* lse = nullptr;   ///< [batch][heads][queries]
  const float* dlse = nullptr;  ///< may be null: zeros
  HeadRows<T> dq, dk, dv;       ///< all elements are written
  bool add_to_keys = false;     ///< dk and dv are added to
  float* dtau = nullptr;        ///< [batch][heads][queries]; needs tau
};

}  // namespace fovea::kernels
