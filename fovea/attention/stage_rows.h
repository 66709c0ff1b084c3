// StageRows: rows of a call on their way through the stages, as the formulas of mechanisms see them
// (mechanism.h, mechanisms/own_stage.h).
//
// Shapes: x is logits or weights [b, h, t, s]; b batch, h heads, t rows, s keys.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "fovea/attention/call.h"
#include "fovea/attention/places.h"
#include "fovea/attention/stages.h"

namespace fovea {

/// Query rows, or keys, [begin, end) of a call.
struct RowRange {
  int64_t begin = 0, end = 0;

  int64_t size() const { return end - begin; }
};

struct StageRows {
  const AttentionCall& call;
  StageId stage = StageId::scale;  ///< that acts now
  RowRange rows, keys;             ///< of x
  Places places;                   ///< of these rows and keys
  at::Tensor allowed;              ///< pairs that may attend, [b or 1, 1 or h, t, s] bool
  /// Rows that leave a convolution: the last ones of x.
  int64_t results = 0;
  mutable bool finite = true;  ///< all queries and keys that scores() read are

  /// Where the first row stands among the keys of the call, without positions of its own.
  int64_t first_row() const { return call.k.size(2) - call.q.size(2) + rows.begin; }
  /// Stage 1 of these rows and keys for queries [b, h, ., d] and keys [b, g, ., d] of the call.
  at::Tensor scores(const at::Tensor& q_bhtd, const at::Tensor& k_bgsd) const;
  /// Weights of these rows and keys times values [b, g, ., e] of the call.
  at::Tensor weigh(const at::Tensor& weights_bhts, const at::Tensor& v_bgse) const;
  /// `allowed` of the last `results` rows.
  at::Tensor allowed_results() const;
  /// Leaves the last `count` rows.
  void keep_last_rows(int64_t count);
  /// Leaves the keys from the first to the last that any row may see. On a device, which is not
  /// asked, some that nobody sees may stay.
  void keep_visible_keys();
};

/// Rows `rows` of a call and all its keys, with the pairs that the spec allows. `places` are those
/// of the call.
StageRows stage_rows(const AttentionCall& call, const Places& places, RowRange rows);

/// x after the formulas of `rows.stage`, in the order of the mechanisms. `rows` follows where a
/// convolution leaves fewer of them.
at::Tensor with_formulas(at::Tensor x_bhts, StageRows& rows);

/// The last `count` rows of x [b, h, rows, ...].
at::Tensor last_rows(const at::Tensor& x, int64_t count);

}  // namespace fovea
