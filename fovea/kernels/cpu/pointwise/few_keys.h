// Attention to a few keys more, on the CPU: rows whose attention to other keys is known take them
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
// Functions exist for T = float and T = BFloat16; the instruction set is chosen_isa(). Threads:
// OpenMP. Results are the same bits for any number of threads.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/kernels/common/contract.h"

namespace fovea::kernels {

/// Keys at most: what a row reads of them is one word.
constexpr int64_t kMostFewKeys = 64;

template <class T>
struct FewKeys {
  AttentionSizes sizes;  ///< keys: the few
  HeadRows<const T> q, k, v;
  const int64_t* key_rows = nullptr;  ///< [keys]: rows of k and v
  /// [batch][heads][queries]: bit n where the row reads key n
  const uint64_t* const* seen = nullptr;
  float scale = 1.0f;
  const float* tau = nullptr;  ///< [batch][queries]: replaces `scale` by 1 / tau
  float soft_cap = 0.0f;       ///< 0: none
  HeadRows<T> out;             ///< in place
  float* lse = nullptr;        ///< [batch][heads][queries], in place; -inf where nothing was seen
};
template <class T>
void run(const FewKeys<T>& p);

/// Whose queries read the few keys: those that read the other keys, to whose gradients the few
/// keys' part is added, or queries of their own, whose gradients are written.
enum class FewQueries { shared, own };

template <class T>
struct FewKeysGradient {
  AttentionSizes sizes;
  HeadRows<const T> q, k, v, out, dout;  ///< out: of all keys together
  const int64_t* key_rows = nullptr;
  const uint64_t* const* seen = nullptr;
  float scale = 1.0f;
  const float* tau = nullptr;
  float soft_cap = 0.0f;
  const float* lse = nullptr;   ///< of all keys together
  const float* dlse = nullptr;  ///< may be null: zeros
  FewQueries queries = FewQueries::shared;
  HeadRows<T> dq;
  float* dtau = nullptr;               ///< [batch][heads][queries]; needs tau
  float *dk = nullptr, *dv = nullptr;  ///< [batch][kv_heads][keys][pitch_of(width)], written
};
template <class T>
void run(const FewKeysGradient<T>& p);

/// The gradient of a few queries over many keys: the same with queries and keys exchanged. The
/// queries of a key head's query heads are kMostFewKeys at most.
template <class T>
struct FewQueriesGradient {
  AttentionSizes sizes;  ///< queries: the few
  HeadRows<const T> q, k, v, out, dout;
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
template <class T>
void run(const FewQueriesGradient<T>& p);

/// Rows that a thread takes at a time; rows of a block, at most.
constexpr int64_t kFewChunk = 128, kFewRows = 16;

/// The keys or values of one key head in floats; rows end in zeros.
struct FewOperand {
  int64_t width = 0, pitch = 0;
  const float* rows = nullptr;  ///< [keys][pitch]

  static constexpr int64_t pitch_of(int64_t width) { return (width + 15) / 16 * 16; }
};

/// Neighbouring rows of one head.
template <class T>
struct FewRows {
  FewOperand k, v;
  int64_t count = 0;
  const T* q = nullptr;
  int64_t q_row = 0;
  const uint64_t* seen = nullptr;
  float scale = 1.0f, soft_cap = 0.0f;
  const float* tau = nullptr;
  T* out = nullptr;
  int64_t out_row = 0;
  float* lse = nullptr;
  float* memory = nullptr;  ///< few_memory(widths)
};

template <class T>
struct FewGradientRows {
  FewOperand k, v;
  int64_t count = 0;
  const T *q = nullptr, *out = nullptr, *dout = nullptr;
  int64_t q_row = 0, out_row = 0, dout_row = 0;
  const uint64_t* seen = nullptr;
  float scale = 1.0f, soft_cap = 0.0f;
  const float *tau = nullptr, *lse = nullptr, *dlse = nullptr;
  FewQueries queries = FewQueries::shared;
  T* dq = nullptr;
  int64_t dq_row = 0;
  float* dq_sums = nullptr;            ///< if not null, added to instead of dq; rows as far apart
  float *dk = nullptr, *dv = nullptr;  ///< [keys][pitch], added to
  float* dtau = nullptr;
  float* memory = nullptr;
};

/// Neighbouring keys of one key head, and the queries of its query heads, scaled.
template <class T>
struct FewQueriesRows {
  FewOperand q, dout;
  const float *lse = nullptr, *less = nullptr;  ///< of every query; less: dO . O - dlse
  int64_t count = 0;
  const T *k = nullptr, *v = nullptr;
  int64_t k_row = 0, v_row = 0;
  const uint64_t* seen = nullptr;
  float soft_cap = 0.0f;
  T *dk = nullptr, *dv = nullptr;
  int64_t dk_row = 0, dv_row = 0;
  bool add_to_keys = false;
  float *dq = nullptr, *turn = nullptr;  ///< [queries][pitch] and [queries], added to
  float* memory = nullptr;
};

/// Floats of FewRows::memory and its likes.
constexpr int64_t few_memory(int64_t key_width, int64_t value_width) {
  return 2 * kFewRows * (FewOperand::pitch_of(key_width) + FewOperand::pitch_of(value_width));
}

/// The functions of one instruction set, one thread.
template <class T>
struct FewKeysTable {
  void (*join)(const FewRows<T>& p);
  void (*gradient)(const FewGradientRows<T>& p);
  void (*of_queries)(const FewQueriesRows<T>& p);
};
/// That of chosen_isa().
template <class T>
const FewKeysTable<T>& few_keys_table();

}  // namespace fovea::kernels
