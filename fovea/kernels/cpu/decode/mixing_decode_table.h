// Tasks and functions of mixing_decode.h for one instruction set: plain structs and function
// pointers (internal to kernels/cpu).
//
// No inline functions and no containers here: sources compiled with wide instructions include it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/common/mixing.h"
#include "fovea/kernels/cpu/decode/mixing_decode.h"
#include "fovea/kernels/cpu/mixing/mixing_table.h"
#include "fovea/kernels/cpu/pointwise/attention_table.h"

namespace fovea::kernels {

/// Zeros before and behind the numbers of a row: a kernel reaches 7 keys to either side.
constexpr int64_t kRowMargin = 16;
/// Rows of logits at most: of kMostMixingQueries results, and the earlier ones of both kernels.
constexpr int64_t kMostLogitRows = kMostMixingQueries + 2 * (kMostKernelRows - 1);
/// Steps of keys whose weighted values are summed together.
constexpr int64_t kValueSteps = 2;

/// One sequence. Rows are numbered from the oldest that a stage reads: row r of the logits is row
/// r - kernel_before.earlier() of the weights and r - mixing.earlier() of the results.
template <class T>
struct MixingDecodeTask {
  PackedWidth key_width, value_width;
  int64_t heads = 0, kv_heads = 0;
  int64_t key_begin = 0, key_end = 0;  ///< of the keys that some row sees; the first is a step's
  int64_t steps = 0;
  int64_t logit_rows = 0, weight_rows = 0, results = 0;
  HeadRows<const T> q, k, v;           ///< of this sequence
  int64_t first_query = 0;             ///< the query of row 0 of the logits; may be negative
  HeadRows<T> out;                     ///< [heads][results]
  float* lse = nullptr;                ///< [heads][results]; may be null
  const KeyRange *near, *far;          ///< [logit_rows]
  const float* scales = nullptr;       ///< [logit_rows]
  const int32_t* positions = nullptr;  ///< [logit_rows]
  const HeadRule* rules = nullptr;     ///< [heads]
  bool biased = false;                 ///< some head has a position bias
  PairGate::Form gate_form = PairGate::Form::none;
  /// [weight_rows][pitch]: what the gate makes of every pair (GateRow); null without a gate.
  float* gates = nullptr;
  /// Hard Focus: of query 0 and key 0 of this sequence, and which keys rows may see by it,
  /// [logit_rows][steps].
  MemberMask members;
  uint64_t* met = nullptr;
  const float* sinks = nullptr;      ///< [heads]; null: none
  MixingRule mixing;                 ///< mix_after as it stands,
  const float* mix_after = nullptr;  ///< and stored (out, in)

  /// Numbers of key j of a row lie at kRowMargin + j - key_begin.
  int64_t pitch = 0;
  float* queries = nullptr;  ///< [heads][logit_rows][words], as packed
  float* logits = nullptr;   ///< [heads][logit_rows][pitch]
  float* weights = nullptr;  ///< [heads][weight_rows][pitch]
  /// [heads][weight_rows][step_pitch]: of every step the largest logit, in log 2, and the sum of
  /// the weights under it; -inf and 0 behind the last step.
  float *tops = nullptr, *totals = nullptr;
  int64_t step_pitch = 0;
  float* sums = nullptr;   ///< [heads][results][steps]: of the convolved weights, to renormalise
  float* parts = nullptr;  ///< [value chunk][heads][results][value columns]
};

/// The functions of one instruction set, one thread, in this order. Each reads what all calls of
/// the one before have written; `scratch` holds scratch_floats().
template <class T>
struct MixingDecodeTable {
  const char* isa = "";
  int64_t elements = 0, lanes = 0;  ///< of a word; granularity of columns and pitch
  int64_t (*scratch_floats)(const MixingDecodeTask<T>&) = nullptr;
  /// All queries as packed words.
  void (*pack)(const MixingDecodeTask<T>&) = nullptr;
  /// Memberships of a step, of all rows; only with `members`.
  void (*meet)(const MixingDecodeTask<T>&, int64_t step) = nullptr;
  /// Logits of a step and a key head: item step kv_heads + g.
  void (*logits)(const MixingDecodeTask<T>&, int64_t item, float* scratch) = nullptr;
  /// Weights of a step relative to its largest logit, of all heads.
  void (*weights)(const MixingDecodeTask<T>&, int64_t step, float* scratch) = nullptr;
  /// The softmax of a row: item head weight_rows + row.
  void (*normalise)(const MixingDecodeTask<T>&, int64_t item) = nullptr;
  /// Sums of a step's convolved weights, of all heads; only to renormalise.
  void (*sum)(const MixingDecodeTask<T>&, int64_t step, float* scratch) = nullptr;
  /// The part of the results that kValueSteps steps make.
  void (*values)(const MixingDecodeTask<T>&, int64_t chunk, float* scratch) = nullptr;
  /// The result of a row: item head results + row.
  void (*finish)(const MixingDecodeTask<T>&, int64_t item) = nullptr;
};

/// Those of chosen_isa().
template <class T>
const MixingDecodeTable<T>& mixing_decode_table();

}  // namespace fovea::kernels
