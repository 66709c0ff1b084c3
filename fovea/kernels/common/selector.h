// Queries that choose their keys: SparQ's choice by a few components (spec 4.4), or by given
// logits.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/kernels/common/contract.h"

namespace fovea::kernels {

/// Keys of one row that its heads choose together, and how.
struct KeyBudget {
  int64_t past = 0;    ///< k: past keys beside the row's own
  int64_t recent = 0;  ///< l: the last of them are chosen whatever their score

  /// Keys that a row of `length` keys reads.
  int64_t chosen_of(int64_t length) const { return length < past + 1 ? length : past + 1; }
};

/// One query a sequence against keys that lie by component. Steps 1 to 3: of every key head's
/// queries the `components` largest, softmax of their products with all keys, and the keys of the
/// largest weight, summed over the heads.
template <class T>
struct ComponentChoice {
  AttentionSizes sizes;  ///< one query; keys: of all sequences
  HeadRows<const T> q;
  /// Component c of key j of head g at b batch + g head + c component + j.
  const T* keys = nullptr;
  int64_t batch = 0, head = 0, component = 0;
  int64_t components = 0;
  KeyBudget budget;
  float scale = 1.0f;                ///< the layer's, without the share of |q|
  const float* tau = nullptr;        ///< [batch]: replaces `scale` by 1 / tau
  HeadRows<const T> next_k, next_v;  ///< if not null: rows of chosen keys are fetched from them
  int32_t* chosen = nullptr;         ///< [batch kv_heads][budget.chosen_of(keys)], ascending
  float* alpha = nullptr;            ///< [batch heads]: weight of the chosen keys
};

/// Steps 2 and 3 for rows of one key head whose logits are given: row r has the first
/// first_length + r keys, its own last.
struct LogitChoice {
  int64_t rows = 0, heads = 0, first_length = 0;
  float* logits = nullptr;  ///< [heads][rows][pitch], overwritten
  int64_t pitch = 0;
  KeyBudget budget;
  int32_t* chosen = nullptr;  ///< budget.chosen_of() of row 0, then those of row 1, ...; ascending
  const int32_t* begin = nullptr;  ///< [rows]: where a row's stand
  float* alpha = nullptr;          ///< [rows][heads]
};

}  // namespace fovea::kernels
