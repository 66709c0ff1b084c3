// Multi-Token Attention: the key-query convolution of logits and weights (paper: Multi-Token
// Attention, Eq. 4 and 5; spec 3, M-1 ... M-21).
//
//   y[h,i,j] = sum_{a < cq, b < ck} K[h,a,b] x[h, i + a - (cq-1), j + b - floor((ck-1)/2)]
//
// x is 0 out of range and where its pair is not allowed (Mask0); rows of other documents do not
// count (3.4, M-11). A document is a run of equal labels.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "fovea/config/fields.h"

namespace fovea {

struct Mechanism;

/// Extent of a key-query kernel [H, cq, ck]: cq queries up to the current one, ck keys around the
/// current one. Both 0 = no convolution.
struct KernelExtent {
  int64_t queries = 0;  ///< cq; row cq-1 of the kernel is the current query (M-4)
  int64_t keys = 0;     ///< ck; odd or even (M-3)

  bool active() const { return queries > 0; }
  /// Keys on the older and on the newer side of the current one.
  int64_t older_keys() const { return (keys - 1) / 2; }
  int64_t newer_keys() const { return keys / 2; }
  /// Query rows before the current one that a result needs.
  int64_t earlier_queries() const { return queries > 0 ? queries - 1 : 0; }
  void describe(FieldVisitor& v);
  bool operator==(const KernelExtent&) const = default;
};

/// Key-query convolution of Multi-Token Attention (stages 3 and 8; spec 3.2). The kernels are
/// AttentionTensors.
struct MultiTokenSpec {
  /// M-1: the pairs of an older query that the convolution drops before the softmax; afterwards
  /// both agree. `eq5`: keys that the older query may not see. `eq4`: keys that the current query
  /// may not see.
  enum class Equation { eq5, eq4 };

  KernelExtent before;  ///< on the logits
  KernelExtent after;   ///< on the weights
  Equation equation = Equation::eq5;
  bool renormalise = false;  ///< M-9: convolved weights are divided by the sum of their row

  /// Query rows before the first one of a call that its results need: (cq-1) + (cq'-1) (3.6,
  /// M-10).
  int64_t earlier_queries() const { return before.earlier_queries() + after.earlier_queries(); }
  void describe(FieldVisitor& v);
  void check() const;
  bool operator==(const MultiTokenSpec&) const = default;
};

std::span<const std::string_view> enum_names(MultiTokenSpec::Equation);

const Mechanism& multi_token_mechanism();

/// One convolution of x [b, h, rows, s] with kernel [h, cq, ck]. The result has the last `results`
/// rows; the rows before them are the earlier queries (missing ones count as 0). `documents` are
/// the labels of all rows, [b or 1, rows], or undefined. Differentiable in x and the kernel.
///
/// eq5: x must be 0 where row and key are not allowed; `allowed` is not looked at. eq4: x is raw
/// and `allowed` [b or 1, 1, results, s] decides by the row of the result.
at::Tensor key_query_convolution(MultiTokenSpec::Equation equation, const at::Tensor& x_bhrs,
                                 const at::Tensor& kernel_hqk, int64_t results,
                                 const at::Tensor& documents_br, const at::Tensor& allowed_b1ts);

/// How kernels start (3.5). `identity`: 1 at the current pair; `constant`: `value` everywhere;
/// `uniform`: U(-value, value), drawn by the caller; `diagonal`: 1 where the key lies as far back
/// as the query.
enum class KernelStart { identity, zeros, constant, uniform, diagonal };
std::span<const std::string_view> enum_names(KernelStart);

/// Kernels [heads, cq, ck] of the starts that draw nothing, float32.
at::Tensor start_kernel(KernelStart start, double value, int64_t heads, const KernelExtent& extent);

}  // namespace fovea
