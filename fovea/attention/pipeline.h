// The stages of the reference, one function each, on float32 or float64 logits (internal to
// attention/).
//
// Shapes: logits and weights [b, h, t, s]; b batch, h heads, g key/value heads, t queries, s keys,
// d key width, e value width.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <limits>

#include "fovea/attention/call.h"
#include "fovea/attention/stage_rows.h"

namespace fovea {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// float64 for float64, float32 for everything else: the dtype of logits, softmax and lse.
at::ScalarType accumulate_type(at::ScalarType dtype);

/// Stage 1: q.k scaled by scale / t, or divided by tau_i.
at::Tensor scaled_logits(const AttentionSpec& spec, const at::Tensor& q_bhtd,
                         const at::Tensor& k_bgsd, const at::Tensor& tau_bt);

/// Stage 7: weights and lse. An empty row has weights 0, lse -inf (or the sink logit) and gradient
/// 0.
struct Softmax {
  at::Tensor weights_bhts;
  at::Tensor lse_bht;  ///< undefined unless wanted
};
Softmax softmax_rows(const at::Tensor& logits_bhts, const at::Tensor& sink_logit_h, bool want_lse);

/// Attention over some of the pairs: out [b, h, t, e] and lse [b, h, t]; 0 and -inf in rows without
/// any.
struct AttentionPart {
  at::Tensor out_bhte, lse_bht;
};
/// The softmax over two disjoint sets of pairs (0.1). Both -inf gives (0, -inf). Differentiable.
AttentionPart merge_parts(const AttentionPart& a, const AttentionPart& b);

/// Stages 1 to 9 of some rows.
struct RowWeights {
  at::Tensor softmax_bhts;  ///< stage 7
  at::Tensor weights_bhts;  ///< stage 9
  at::Tensor lse_bht;       ///< undefined unless wanted
  StageRows rows;           ///< those of the weights
};

/// The weights of some rows of a call, stage by stage of the table. Formulas that read earlier rows
/// (key-query convolutions) get them. `only_visible_keys` leaves out the keys before and after all
/// those that these rows see.
RowWeights weights_of_rows(const AttentionCall& call, const Places& places, RowRange rows,
                           bool want_lse, bool only_visible_keys);

/// The call by plain tensor operations in blocks of `block` rows, each recomputed in the backward
/// pass: a few tensors [b, h, block, s] live at a time, and keys that a block cannot see cost
/// nothing. Block 0 = all rows at once, with an ordinary graph. Outputs are in accumulate_type(),
/// before stage 10's norm, factor and gate.
AttentionResult reference_in_blocks(const AttentionCall& call, int64_t block);

/// Telemetry of the call by the reference.
AttentionStats stats_of(const AttentionCall& call);

/// Rows of a block whose weights fit into a few tens of megabytes; 0 where all rows do.
int64_t reference_block_rows(int64_t batch_heads, int64_t queries, int64_t keys,
                             int64_t element_bytes);

/// Multiplies weights [b, h, t, s] with values [b, g, s, e] without repeating values: [b, h, t, e].
at::Tensor weighted_values(const at::Tensor& weights_bhts, const at::Tensor& v_bgse);

}  // namespace fovea
