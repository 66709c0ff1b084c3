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

#include <vector>

#include "fovea/attention/attention.h"
#include "fovea/attention/places.h"

namespace fovea {

/// ShapeError / ConfigError unless tensors and spec fit together.
void check_inputs(const AttentionSpec& spec, const at::Tensor& q_bhtd, const at::Tensor& k_bgsd,
                  const at::Tensor& v_bgse, const AttentionTensors& tensors,
                  const AttentionContext& context);

/// float64 for float64, float32 for everything else: the dtype of logits, softmax and lse.
at::ScalarType accumulate_type(at::ScalarType dtype);

/// Stage 1: q.k scaled by scale / t, or divided by tau_i.
at::Tensor scaled_logits(const AttentionSpec& spec, const at::Tensor& q_bhtd,
                         const at::Tensor& k_bgsd, const at::Tensor& tau_bt);

/// ALiBi slopes m_h of H heads (spec 6.4), for any H.
std::vector<double> alibi_slopes(int64_t heads);

/// T5 bucket of every distance i - j (spec 6.3); `distance` int64 of any shape.
at::Tensor t5_buckets(const at::Tensor& distance, int64_t buckets, int64_t max_distance,
                      bool causal);

/// Stage 5: the additive bias [b or 1, h, t, s] or undefined where there is none.
at::Tensor position_bias(const AttentionSpec& spec, const AttentionTensors& tensors,
                         const Places& places, at::ScalarType dtype);

/// Stages 1, 2, 5, 6: logits with -inf where not allowed. Rows without any allowed key are all
/// -inf.
at::Tensor masked_logits(const AttentionSpec& spec, const at::Tensor& q_bhtd,
                         const at::Tensor& k_bgsd, const AttentionTensors& tensors,
                         const Places& places);

/// Stage 7: weights and lse. An empty row has weights 0, lse -inf (or the sink logit) and gradient
/// 0.
struct Softmax {
  at::Tensor weights_bhts;
  at::Tensor lse_bht;  ///< undefined unless wanted
};
Softmax softmax_rows(const at::Tensor& logits_bhts, const at::Tensor& sink_logit_h, bool want_lse);

/// The factors 1/(1-p) or 0 of counter-based dropout, [b, h, t, s] (seam 6); i and j count from the
/// start of the sequence.
at::Tensor dropout_factors(const AttentionSpec& spec, const AttentionContext& context,
                           int64_t batch, int64_t queries, int64_t keys, const at::Tensor& like);

/// Multiplies weights [b, h, t, s] with values [b, g, s, e] without repeating values: [b, h, t, e].
at::Tensor weighted_values(const at::Tensor& weights_bhts, const at::Tensor& v_bgse);

}  // namespace fovea
