// Attention of the next tokens over a cache, and the learned temperature of these tokens.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "fovea/attention/attention.h"
#include "fovea/attention/cache/cache.h"
#include "fovea/attention/mechanisms/focal.h"

namespace fovea {

class SortedCopy;      // cache/sorted_copy.h
class SortedKeys;      // cache/sorted_keys.h
struct AttentionCall;  // call.h

/// tau of the next t tokens of the cached sequences: temperature_rows() with the cache's running
/// state, which it advances.
at::Tensor cached_temperature(const TemperatureSpec& spec, int64_t head_dim,
                              const TemperatureParameters& parameters, const at::Tensor& x_btc,
                              AttentionCache& cache);

/// Hard Focus of the last token of every sequence, q [b, h, 1, d], over all tokens of sorted keys.
/// Nothing where the call is not one for the decoding kernels (gradients, telemetry, groups of too
/// many heads).
std::optional<AttentionResult> attend_sorted(const SortedKeys& keys, const AttentionSpec& spec,
                                             const at::Tensor& q_bh1d,
                                             const AttentionTensors& tensors,
                                             const AttentionContext& context);

/// Appends the rows that the streams keep of a call's tokens (StreamSpec::new_rows).
void append_rows(AttentionCache& cache, const AttentionCall& call);

/// Attention of the next t tokens with everything in the cache: appends k and v [b,g,t,*], then
/// attends with the rule of `spec`. Equal to the full call's last t rows (contract "decode");
/// sequences of unequal lengths are attended to one by one. With `sorted`, the copy of this cache,
/// one query of hard Focus may read that. path.name = "decode".
AttentionResult cached_attention(const AttentionSpec& spec, AttentionCache& cache,
                                 const at::Tensor& q_bhtd, const at::Tensor& k_bgtd,
                                 const at::Tensor& v_bgte, const AttentionTensors& tensors = {},
                                 Path path = Path::automatic, SortedCopy* sorted = nullptr);

}  // namespace fovea
