// A few keys more that join the softmax of rows, and a few queries' gradient, on the CPU
// (kernels/common/few_keys.h).
//
// Functions exist for T = float and T = BFloat16; the instruction set is chosen_isa(). Threads:
// OpenMP. Results are the same bits for any number of threads.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/kernels/common/few_keys.h"

namespace fovea::kernels {

template <class T>
void run(const FewKeys<T>& p);
template <class T>
void run(const FewKeysGradient<T>& p);
template <class T>
void run(const FewQueriesGradient<T>& p);

/// Rows that a thread takes at a time; rows of a block, at most.
constexpr int64_t kFewChunk = 128, kFewRows = 16;

/// The keys or values of one key head in floats; rows end in zeros.
struct FewOperand {
  int64_t width = 0, pitch = 0;
  const float* rows = nullptr;  ///< [keys][pitch]
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
  T *out = nullptr, *rest = nullptr;  ///< rest may be null
  int64_t out_row = 0, rest_row = 0;
  float* lse = nullptr;
  float* memory = nullptr;  ///< few_memory(widths)
};

template <class T>
struct FewGradientRows {
  FewOperand k, v;
  int64_t count = 0;
  const T *q = nullptr, *out = nullptr, *rest = nullptr, *dout = nullptr;  ///< rest may be null
  int64_t q_row = 0, out_row = 0, rest_row = 0, dout_row = 0;
  const uint64_t* seen = nullptr;
  float scale = 1.0f, soft_cap = 0.0f;
  const float *tau = nullptr, *lse = nullptr, *dlse = nullptr;
  FewQueries queries = FewQueries::shared;
  T* dq = nullptr;
  int64_t dq_row = 0;
  float* dq_sums = nullptr;            ///< if not null, added to instead of dq; rows as far apart
  float *dk = nullptr, *dv = nullptr;  ///< [keys][pitch], added to
  float* dtau = nullptr;
  float* turns = nullptr;  ///< [rows][kTurnSums], added to
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
  return 2 * kFewRows * (few_pitch(key_width) + few_pitch(value_width));
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
