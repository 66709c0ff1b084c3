// The contract of the attention kernels: rows, sizes, score parameters, and the arguments of
// forward, backward and decoding. Backends (kernels/backend.h) take these structs and nothing else.
//
//   logit_ij = soft_cap(scale_i q_i.k_j) + bias(i - j)    where allowed(i, j), else -inf
//   P_ij = exp(logit_ij - lse_i),  out_i = sum_j P_ij v_j  (stages 1, 2, 5, 6, 7 and 10)
//
//   scale_i      constant, or 1 / tau_i (spec 10)
//   soft_cap(s)  c tanh(s / c) (7.4)
//   bias         ALiBi (6.4), or a table by distance (T5, 6.3)
//
// A sink logit joins the softmax with value 0 (7.5). Dropout is counter-based
// (kernels/common/dropout.h). The gate of Focus (11.2) multiplies weights or logits of distant
// pairs.
//
// Memory: q and out [b][h][t], k and v [b][g][s] by strides with contiguous width; head h reads key
// head h / (heads / kv_heads). Empty rows: out 0, lse -inf, gradients 0. T is float or BFloat16.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fovea/kernels/common/bfloat16.h"
#include "fovea/kernels/common/grouped_plan.h"
#include "fovea/kernels/common/pair_gate.h"
#include "fovea/kernels/common/visits.h"

namespace fovea::kernels {

/// One operand [batch][head][row][width], strides in elements; the width is contiguous.
template <class T>
struct HeadRows {
  T* data = nullptr;
  int64_t batch = 0, head = 0, row = 0;

  T* at(int64_t b, int64_t h, int64_t n = 0) const { return data + b * batch + h * head + n * row; }
  /// The same, or null where there are no rows.
  T* at_or_null(int64_t b, int64_t h, int64_t n = 0) const {
    return data != nullptr ? at(b, h, n) : nullptr;
  }
};

struct AttentionSizes {
  int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0;
  int64_t head_dim = 0, value_dim = 0;
};

/// From products to weights. Null pointers and zeros are neutral.
struct ScoreParameters {
  float scale = 1.0f;
  const float* tau = nullptr;  ///< [batch][queries]: scale_i = 1 / tau_i, `scale` is not used
  float soft_cap = 0.0f;
  const float* alibi = nullptr;  ///< [heads] slopes
  /// [heads][bias_count]: entry n is for i - j = bias_first + n; the ends stand for all distances
  /// beyond.
  const float* distance_bias = nullptr;
  int64_t bias_first = 0, bias_count = 0;
  const float* sink_logit = nullptr;  ///< [heads]
  float dropout = 0.0f;
  uint64_t dropout_seed = 0;  ///< of the batch
  uint32_t dropout_layer = 0;
  PairGate gate;
};

/// Telemetry of a row: entropy in nats, largest weight, weight of its document's position 0; before
/// dropout, 0 for empty rows.
constexpr int64_t kRowStats = 3;

/// A few keys more (few_keys.h).
template <class T>
struct FewKeys;
template <class T>
struct FewKeysGradient;

template <class T>
struct AttentionForward {
  AttentionSizes sizes;
  ScoreParameters rule;
  std::span<const Visits> visits;  ///< one for all rows of the batch, or one each
  HeadRows<const T> q, k, v;
  HeadRows<T> out;
  HeadRows<T> out_rest;             ///< the part of out that rounding took; may be null
  float* lse = nullptr;             ///< [batch][heads][queries], includes the sink; may be null
  float* stats = nullptr;           ///< [batch][heads][queries][kRowStats]; may be null
  const FewKeys<T>* few = nullptr;  ///< join out and lse of all rows; without stats
};

template <class T>
struct AttentionBackward {
  AttentionSizes sizes;
  ScoreParameters rule;
  std::span<const Visits> visits;
  HeadRows<const T> q, k, v, out, dout;
  /// The out_rest of the forward pass; null: zeros. Where one weight is near 1, dP - delta cancels,
  /// and delta = dO.O needs more digits than out has.
  HeadRows<const T> out_rest;
  const float* lse = nullptr;   ///< of the forward pass
  const float* dlse = nullptr;  ///< [batch][heads][queries]; null: zeros
  HeadRows<T> dq, dk, dv;       ///< all elements are written
  float* dtau = nullptr;   ///< [batch][heads][queries], to be summed over heads; needs rule.tau
  float* dsink = nullptr;  ///< [batch][heads], to be summed over the batch; needs rule.sink_logit
  float* dbias = nullptr;  ///< [batch][heads][bias_count]; needs rule.distance_bias
  /// [batch][heads][queries][columns] and [batch][kv_heads][keys][columns], to be summed over
  /// heads; both or none; need rule.gate.
  float *dgate_query = nullptr, *dgate_key = nullptr;
  const FewKeysGradient<T>* few = nullptr;  ///< of the same rows; computed, too
};

/// Forward for a few queries against keys and values that are read once, where they lie (decoding
/// from a cache): nothing is packed, work is split over the keys. Every row of the batch may have
/// another number of keys.
template <class T>
struct AttentionDecode {
  AttentionSizes sizes;
  ScoreParameters rule;             ///< without dropout
  std::span<const RowVisits> rows;  ///< [batch][queries]
  /// Lists of keys, one for each row of the batch, or none: key n that row b visits is row
  /// keys_seen.of(b)[n] of k and v. Keys ascend, sizes.keys is the length of the longest list,
  /// there is one query and no position bias.
  IntRows keys_seen;
  /// If not empty: key 0 of row b of the batch is row first_rows[b] of k and v.
  std::span<const int64_t> first_rows;
  HeadRows<const T> q, k, v;
  HeadRows<T> out;
  float* lse = nullptr;
};

/// Hard Focus by plans (kernels/common/grouped_plan.h): without position bias and dropout.
template <class T>
struct GroupedForward {
  AttentionSizes sizes;
  ScoreParameters rule;
  std::span<const GroupedPlan> plans;  ///< one for all rows of the batch, or one each
  HeadRows<const T> q, k, v;
  HeadRows<T> out, out_rest;  ///< as in AttentionForward
  float* lse = nullptr;       ///< [batch][heads][queries], includes the sink; may be null
  float* stats = nullptr;     ///< [batch][heads][queries][kRowStats]; may be null
};

template <class T>
struct GroupedBackward {
  AttentionSizes sizes;
  ScoreParameters rule;
  std::span<const GroupedPlan> plans;
  HeadRows<const T> q, k, v, out, out_rest, dout;  ///< as in AttentionBackward
  const float* lse = nullptr;                      ///< of the forward pass
  const float* dlse = nullptr;                     ///< [batch][heads][queries]; null: zeros
  HeadRows<T> dq, dk, dv;                          ///< all elements are written
  float* dtau = nullptr;   ///< [batch][heads][queries], to be summed over heads; needs rule.tau
  float* dsink = nullptr;  ///< [batch][heads], to be summed over the batch; needs rule.sink_logit
};

/// The keys that one query sees by hard Focus, ascending: a scan over the memberships of keys at
/// ascending positions in one document (decoding). The query is the last key.
struct KeysOfLast {
  GroupedRule rule;
  std::span<const uint64_t> members;
  std::span<const int64_t> positions;    ///< empty: key n stands at n
  std::vector<int32_t>* seen = nullptr;  ///< appended to
};

}  // namespace fovea::kernels
