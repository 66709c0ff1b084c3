// Differential attention: the difference of two softmax maps (paper: Differential Transformer; spec
// 1).
//
//   o_h = (A1 - lambda A2) v_h = A1 v_h - lambda (A2 v_h)
//   lambda = exp(lq1.lk1) - exp(lq2.lk2) + lambda_init(l)
//
// Differential head h owns the query heads 2h (map 1) and 2h+1 (map 2). Under GQA its maps read key
// heads 2 (h / n_rep) + {0, 1} and value head h / n_rep (1.4, the flash reading): two ordinary
// calls. head_output.h applies the norm and the factor 1 - lambda_init(l) afterwards. Both maps of
// a head have one ALiBi slope and drop the same pairs.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "fovea/attention/attention.h"

namespace fovea {

struct AttentionCall;
struct Mechanism;

const Mechanism& differential_mechanism();

/// The one lambda of a layer, scalar float32 (float64 for float64); differentiable.
at::Tensor differential_lambda(const AttentionSpec& spec, const AttentionTensors& tensors);

/// The ordinary call of map 0 or 1: heads 2h + map, no difference, no norm or gate of its own.
AttentionCall differential_map(const AttentionCall& call, int64_t map);

/// Telemetry of both maps in the order of the query heads.
AttentionStats both_maps(const AttentionStats& first, const AttentionStats& second);

/// Two calls, each by `attend`, and a subtraction. q [b, 2h', t, d], k [b, 2g', s, d],
/// v [b, g', s, e]; out [b, h', t, e]; lse of every map [b, 2h', t].
AttentionResult differential_attention(
    const AttentionCall& call, const std::function<AttentionResult(const AttentionCall&)>& attend);

}  // namespace fovea
