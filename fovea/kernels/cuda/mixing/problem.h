// The arguments of one launch of the mixing kernels (kernels/common/mixing.h has the formulas).
//
// Legend: b batch, h query head, i query row, j key, D head size. Queries are the keys, and a query
// sees its document up to itself.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "fovea/kernels/cuda/attention/problem.h"

namespace fovea::kernels::cuda::mixing {

constexpr int kRowReach = 6;   // queries of a kernel at most; smaller ones are filled with zeros
constexpr int kKeyReach = 17;  // keys of a kernel at most
constexpr int kHalo = kRowReach - 1;
constexpr int kMixed = 16;  // heads that are mixed together
constexpr int kStep = 64;   // keys of a step and rows of a tile in slabs

/// A kernel [h][queries][keys] of float32; no data: the identity.
struct Taps {
  const float* data;
  int32_t queries, keys;
};

struct Problem {
  Rows q, k, v, o;
  int32_t batch, heads, kv_heads, length;
  float scale;
  const int32_t* doc_start;  ///< [b,i] first key of the document of row i; null: one document
  int64_t doc_batch;         ///< 0: one row for all of the batch
  Taps before, after;
  float* lse;  ///< [b,h,i], natural logarithm

  Rows d_o, dq;
  const float* d_lse;  ///< [b,h,i]; null: zeros
  float *dk, *dv;      ///< [b,g,j,D] sums, zeros before the launch
  /// [b][shape of the taps] sums, zeros before the launch; null: not wanted.
  float *d_before, *d_after;
  /// [b,h] largest |do_i|^2, |v_j|^2 and |d_lse_i|; zeros before the launch.
  float* norms;
  float* delta;  ///< [b,h,i] sum_j w dw - d_lse, times the power of two of the head's gradients
};
constexpr int kNorms = 3;

/// Heads first .. first + count - 1, which are mixed by one matrix.
struct Bundle {
  int32_t first, count;         ///< count: kMixed at most
  const float *before, *after;  ///< [out][in], kMixed x kMixed; zeros beyond `count`
  /// Backward: [b] power of two that scales the gradients of scores, since heads mix.
  float* exponent;
  float *d_before, *d_after;  ///< [b][out][in], zeros before the launch
};

/// Scores of a bundle's heads for some rows: 16-bit numbers [b][lead + rows][count][pitch].
struct Slab {
  uint16_t* data;
  int32_t heads, rows, pitch;  ///< rows without the lead
  int32_t row0;                ///< the query that row 0 is
  int32_t lead;                ///< rows of the slab before, at -lead .. -1
};

}  // namespace fovea::kernels::cuda::mixing
