// The features of Performer: their directions, and the logits that they define (spec 4.2).
//
// Shape suffixes: b batch, h query heads, g key heads, t queries, s keys, d key width, m features.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "fovea/attention/specs/performer.h"

namespace fovea {

struct AttentionCall;
struct StreamSpec;

/// Directions w [m, d], float32, from a seed: blocks of d rows, each block orthogonal and
/// isotropic, rows as long as Gaussian vectors of their own, or sqrt(d). Gram-Schmidt gives R a
/// positive diagonal: what a QR decomposition needs its signs for.
at::Tensor draw_features(const PerformerSpec& spec, int64_t head_dim, uint64_t seed);

/// The next draw after `features_md`: its seed is made from their bits, so that a checkpoint of the
/// features holds all that later draws need.
at::Tensor redraw_features(const PerformerSpec& spec, const at::Tensor& features_md);

/// What queries and keys are multiplied with: their product has the scale of the logits, and a
/// temperature acts on queries alone. Divided by tau where that is learned.
struct PerformerFactors {
  double query = 1.0, key = 1.0;
};
PerformerFactors performer_factors(const AttentionCall& call);

/// ln phi(q_i) . phi(k_j) [b, h, t, s] for some queries and keys of the call, -inf where it is 0:
/// weights are its softmax. Undefined without Performer. With epsilon the stabiliser of keys is
/// taken from all keys of the call. Differentiable.
at::Tensor performer_logits(const AttentionCall& call, const at::Tensor& q_bhtd,
                            const at::Tensor& k_bgsd, const at::Tensor& tau_bt);

}  // namespace fovea
