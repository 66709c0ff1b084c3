// Balanced assignment of tokens to groups: Sinkhorn in the log domain as potentials (spec 11.3).
//
//   b_k <- -LSE_i(S_ik / tau + a_i),  a_i <- -LSE_k(S_ik / tau + b_k),  from a = 0, N rounds
//   Q_ik = softmax_k(S_ik / tau + b_k)
//
// These K numbers are all that tokens know of each other. `sequence` and `batch` potentials see
// later tokens (U-4); those of `ema` and `chunk` do not.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "fovea/attention/attention.h"
#include "fovea/attention/stream_spec.h"

namespace fovea {

/// The stream of the tokens' scores, [b, n, K], which `chunk` reads back.
inline constexpr const char* kGroupScoresStream = "group_scores";

/// Centred b [.., k] of scores S / tau [.., n, k]; zeros for no tokens. Differentiable.
at::Tensor sinkhorn_potentials(const at::Tensor& scores_nk, int64_t rounds);

/// b of every token, to be added to the scores [b, t, k] (undefined = 0): by
/// `spec.assignment` and `spec.potentials`. Documents are runs of equal labels of `context`.
/// `ema_k` is the running b of `ema`.
at::Tensor token_potentials(const FocusSpec& spec, const at::Tensor& scores_btk,
                            const AttentionContext& context, const at::Tensor& ema_k);

/// The same for the next tokens of a cached sequence, whose scores it appends where they are needed
/// later (`chunk`). UnsupportedError for `sequence` and `batch`.
at::Tensor cached_potentials(const FocusSpec& spec, const at::Tensor& scores_btk,
                             const at::Tensor& ema_k, CachedStreams& cache);

}  // namespace fovea
