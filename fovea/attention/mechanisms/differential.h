// Differential attention: the difference of two softmax maps (paper: Differential Transformer; spec
// 1).
//
//   o_h = (A1 - lambda A2) v_h = A1 v_h - lambda (A2 v_h)
//   lambda = exp(lq1.lk1) - exp(lq2.lk2) + lambda_init(l)
//
// Differential head h owns the query heads 2h (map 1) and 2h+1 (map 2). Under GQA its maps read key
// heads 2 (h / n_rep) + {0, 1} and value head h / n_rep (1.4, the flash reading): two ordinary
// calls. Norm and factor 1 - lambda_init(l) afterwards are head_output.h. Both maps of a head have
// one ALiBi slope and drop the same pairs.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "fovea/attention/attention.h"

namespace fovea {

/// The one lambda of a layer, scalar float32 (float64 for float64); differentiable.
at::Tensor differential_lambda(const AttentionSpec& spec, const AttentionTensors& tensors);

/// What one of the two maps is: half the heads, no difference, no norm or gate of its own.
AttentionSpec differential_map(const AttentionSpec& spec);
/// Heads 2h + map of x [b, heads, ...].
at::Tensor map_heads(const at::Tensor& x_bh, int64_t map);
/// The inputs of the stages that belong to heads 2h + map.
AttentionTensors map_tensors(const AttentionTensors& tensors, int64_t map);

/// An ordinary attention with the given spec, q, k, v and tensors.
using AttentionCall =
    std::function<AttentionResult(const AttentionSpec&, const at::Tensor&, const at::Tensor&,
                                  const at::Tensor&, const AttentionTensors&)>;

/// Two calls and a subtraction. q [b, 2h', t, d], k [b, 2g', s, d], v [b, g', s, e]; out
/// [b, h', t, e]; lse of every map [b, 2h', t].
AttentionResult differential_attention(const AttentionSpec& spec, const at::Tensor& q,
                                       const at::Tensor& k, const at::Tensor& v,
                                       const AttentionTensors& tensors, const AttentionCall& call);

}  // namespace fovea
