// The backward mixing kernels of one instruction set as their driver calls them: some strips of one
// bundle of heads (internal to kernels/cpu).
//
// A strip owns kGradientRows rows of dO. All gradients are linear in dO, so the contribution of its
// dO needs only the inputs of other strips. The strip computes logits and weights of its own rows
// and of the `earlier` rows before them again, and adds to the gradients of all these rows.
//
//   frame of a strip    row 0 ...            earlier_before ...     earlier ...  frame
//   logits, dq, dk      |---------------------------------------------------------|
//   weights, dlogits                         |------------------------------------|
//   dO, joined weights                                              |-------------|
//
// No inline functions with vectors and no containers here: sources compiled with wide instructions
// include it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/mixing/mixing_table.h"

namespace fovea::kernels {

/// Queries of a strip. More than forward: earlier rows are computed again by every strip.
constexpr int64_t kGradientRows = 96;
/// Rows of zeros behind a frame, which products of whole registers read.
constexpr int64_t kRowsBehind = 16;
/// Keys on either side of a step that a convolution, turned round or not, reads.
constexpr int64_t kKeyHalo = 8;
static_assert(kWindowPitch == kStepKeys + 2 * kKeyHalo && kKeyHalo > kMostKernelKeys / 2);

/// The width of a group of heads in whole products.
constexpr int64_t padded_heads(int64_t width) { return (width + 3) / 4 * 4; }

/// One head of a bundle, in one row of the batch.
template <class T>
struct MixingGradientHead {
  const T *q = nullptr, *dout = nullptr;
  const Word* k_columns = nullptr;  ///< packed panels of keys
  const Word* v_columns = nullptr;
  const Word* k_rows = nullptr;                               ///< packed panels: rows
  const float *taps_before = nullptr, *taps_after = nullptr;  ///< [cq][ck]
  const float *lse = nullptr, *dlse = nullptr;                ///< [queries]; dlse may be null
  const float* row_sums = nullptr;                            ///< [queries], if renormalised
  HeadRule rule;
  float* dq = nullptr;                 ///< [strips][padded frame][columns]: each strip's part
  float *dk = nullptr, *dv = nullptr;  ///< [padded keys][columns]: sums of these strips
};

/// Sums over the strips of a task; null where not wanted.
struct MixingGradientSums {
  double *kernel_before = nullptr, *kernel_after = nullptr;  ///< [heads][cq][ck]
  /// [heads / width][width][width] as (out, in).
  double *mix_before = nullptr, *mix_after = nullptr;
  double* row = nullptr;   ///< [heads]: of exp(sink - lse) D, see dsink
  double* bias = nullptr;  ///< [heads][bias_count]
  /// Gradients of the gate's factors: [queries][pitch], and laid out as PairTerms::key_gate.
  float *gate_query = nullptr, *gate_key = nullptr;
};

/// Every `strip_step`-th strip from strip_begin on.
template <class T>
struct MixingGradientTask {
  PackedWidth key_width, value_width;
  int64_t dq_columns = 0;  ///< query_columns()
  int64_t queries = 0, keys = 0;
  int64_t first_index = 0;  ///< of query 0 in the sequence, for dropout
  int64_t heads = 0;
  const MixingGradientHead<T>* head = nullptr;
  int64_t q_row = 0, dout_row = 0;

  /// Extents of the kernels; 0 x 0 without.
  int64_t rows_before = 0, keys_before = 0, rows_after = 0, keys_after = 0;
  /// Groups of `width` heads, [heads / width][width][width], and turned round; null without.
  const float *mix_before = nullptr, *mix_before_back = nullptr;
  const float *mix_after = nullptr, *mix_after_back = nullptr;
  int64_t width_before = 0, width_after = 0;
  KernelEquation equation = KernelEquation::eq5;
  bool renormalise = false;
  float scale = 1.0f;
  const float* tau = nullptr;  ///< [queries]; null: `scale`
  bool capped = false, drops = false;
  PairTerms terms;
  const float* sink = nullptr;  ///< [heads]

  VisitRule rule;
  PlaceColumns query_places, key_places;
  const int32_t* first_row = nullptr;  ///< [queries] of the row's document; null: one document
  /// Steps of keys that the rows of a strip's frame see: [first_step, last_step) of strip s.
  const int32_t *first_step = nullptr, *last_step = nullptr;
  int64_t most_steps = 0;
  int64_t strip_begin = 0, strip_end = 0, strip_step = 1;
  MixingGradientSums sums;

  int64_t earlier_before() const { return rows_before > 0 ? rows_before - 1 : 0; }
  int64_t earlier_after() const { return rows_after > 0 ? rows_after - 1 : 0; }
  int64_t earlier() const { return earlier_before() + earlier_after(); }
  /// Rows of a frame.
  int64_t frame() const { return earlier() + kGradientRows; }
  /// Rows of a part of dq.
  int64_t padded_frame() const { return (frame() + 15) / 16 * 16; }
};

}  // namespace fovea::kernels
