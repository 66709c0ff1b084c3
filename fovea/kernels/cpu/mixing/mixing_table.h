// The mixing kernels of one instruction set as their driver calls them: plain structs and function
// pointers (internal to kernels/cpu).
//
// No inline functions and no containers here: sources compiled with wide instructions include it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/common/mixing.h"
#include "fovea/kernels/cpu/pointwise/attention_table.h"

namespace fovea::kernels {

/// Queries of a strip: a multiple of the rows of a product (8) and of a convolution (6). More reuse
/// keys and values longer, until a strip's logits, sums and operands leave a second-level cache.
constexpr int64_t kStripRows = 48;
/// Keys of a step: four vectors of the widest instruction set.
constexpr int64_t kStepKeys = 64;
/// A convolution's result lags behind its input by this many keys, so that it needs keys of the
/// past only: at least kMostKernelKeys / 2.
constexpr int64_t kKernelLag = 8;
/// Keys before a step that a convolution reads: kKernelLag and the older half of a kernel.
constexpr int64_t kHistory = 16;
/// Rows above a strip that a convolution reads, at most: kMostKernelRows - 1, rounded up.
constexpr int64_t kHaloRows = 8;
/// A window: kHaloRows + kStripRows rows of kHistory + kStepKeys keys.
constexpr int64_t kWindowPitch = kHistory + kStepKeys;
static_assert(kKernelLag > kMostKernelKeys / 2 && kHaloRows >= kMostKernelRows - 1);
static_assert(kHistory >= kKernelLag + (kMostKernelKeys - 1) / 2);

/// Keys before the first in the arrays of PairTerms, for steps that lag.
constexpr int64_t kTermMargin = 64;

/// Terms that join the mixed logits of one sequence: the gate of Focus, biases by distance. Key n
/// stands at kTermMargin + n of its arrays.
struct PairTerms {
  GateRule gate;
  const float* query_gate = nullptr;  ///< [queries][pitch]
  const float* key_gate = nullptr;    ///< [pitch][key_pitch]
  int64_t key_pitch = 0;
  const int32_t *query_position = nullptr, *key_position = nullptr;
  bool biased = false;  ///< some head has a bias
};

/// The steps of every strip, in ascending order: step n holds keys [n kStepKeys, (n + 1) kStepKeys)
/// as they enter; results of convolutions lag. Strip s has steps[begin[s]] ... steps[begin[s + 1]).
struct StripSteps {
  const int32_t* steps = nullptr;
  const int64_t* begin = nullptr;
  int64_t most = 0;    ///< steps of the longest strip
  int64_t blocks = 0;  ///< of keys, with one more for what lags behind
};

/// One head of a bundle, in one row of the batch.
template <class T>
struct MixingHead {
  const T* q = nullptr;
  T* out = nullptr;
  const Word* keys = nullptr;    ///< packed panels: columns
  const Word* values = nullptr;  ///< packed panels: rows; row n is key n - lag
  /// Bit j % 64 of word j / 64: v_j is not finite (null: none).
  const uint64_t* unusable = nullptr;
  const float *taps_before = nullptr, *taps_after = nullptr;  ///< [cq][ck]
  float sink = 0.0f;                                          ///< -inf without
  float* lse = nullptr;                                       ///< [queries]; may be null
  float* row_sums = nullptr;                                  ///< [queries]; may be null
  HeadRule rule;
};

/// A range of strips of one bundle of heads in one row of the batch.
template <class T>
struct MixingStrips {
  PackedWidth key_width, value_width;
  int64_t queries = 0, keys = 0;
  int64_t first_index = 0;  ///< of query 0 in the sequence, for dropout
  int64_t heads = 0;
  const MixingHead<T>* head = nullptr;
  int64_t q_row = 0, out_row = 0;

  /// Extents of the kernels; 0 x 0 without.
  int64_t rows_before = 0, keys_before = 0, rows_after = 0, keys_after = 0;
  /// Groups of `width` heads, [heads / width][width][width] stored (out, in); null without.
  const float *mix_before = nullptr, *mix_after = nullptr;
  int64_t width_before = 0, width_after = 0;
  KernelEquation equation = KernelEquation::eq5;
  bool renormalise = false;
  float scale = 1.0f;
  const float* tau = nullptr;  ///< [queries]; null: `scale`
  bool capped = false, drops = false;
  int64_t most_kept = 0;  ///< floats of exponentials, at most
  PairTerms terms;

  VisitRule rule;
  PlaceColumns query_places, key_places;
  const TileRange* ranges = nullptr;     ///< TileRanges::ranges of Visits::by_query
  const int64_t* range_begin = nullptr;  ///< by block of kQueryBlock queries
  const int32_t* first_row = nullptr;    ///< [queries] of the row's document; null: one document
  StripSteps steps;
  int64_t strip_begin = 0, strip_end = 0;
};

template <class T>
struct MixingGradientTask;  // mixing_gradient_task.h

/// The backward pass: units by themselves.
template <class T>
struct MixingGradientPass {
  int64_t (*scratch)(const MixingGradientTask<T>&) = nullptr;  ///< floats of one thread
  void (*run)(const MixingGradientTask<T>&, float* scratch) = nullptr;
};

template <class T>
struct MixingTable {
  const char* isa = "";
  int64_t panel = 0, elements = 0, lanes = 0;  ///< as AttentionTable has them
  void (*pack)(const PanelSource<T>&, const PackedWidth&, const PanelLayouts&,
               Word* scratch) = nullptr;
  int64_t (*forward_scratch)(const MixingStrips<T>&) = nullptr;  ///< floats of one thread
  void (*forward)(const MixingStrips<T>&, float* scratch) = nullptr;
  MixingGradientPass<T> gradient;
};

}  // namespace fovea::kernels
