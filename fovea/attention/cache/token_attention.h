// Attention of the next token of every sequence of a cache, without tensor operations: KV shifting,
// convolutions and head mixes, whose rows the kernels read where the cache keeps them.
//
// The same numbers as cached_attention() of one token (spec 3.6, M-10), for the fused decoder.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fovea/attention/attention.h"
#include "fovea/attention/cache/cache.h"
#include "fovea/kernels/common/contract.h"

namespace fovea {

/// Why TokenAttention is not for a spec.
std::optional<std::string> why_not_token_attention(const AttentionSpec& spec);

/// The token's rows of all heads: [sequence][head][row 0].
template <class T>
struct TokenHeads {
  kernels::HeadRows<const T> q, k, v;
  kernels::HeadRows<T> out;
};

class TokenAttention {
 public:
  /// A spec that why_not_token_attention() takes, and its decode_rule().
  TokenAttention(AttentionSpec spec, const kernels::ScoreParameters& rule);

  /// Appends the token of every sequence to the cache's streams and writes its output; `tensors`
  /// are those of the layer.
  template <class T>
  void attend(AttentionCache& cache, const AttentionTensors& tensors, const TokenHeads<T>& token);

 private:
  /// New rows of keys or values, shifted where the spec says so.
  template <class T>
  CachedRows append(AttentionCache& cache, const char* name, const char* unshifted,
                    const at::Tensor& shift_g2, int64_t heads, kernels::HeadRows<const T> from);
  template <class T>
  void attend_plainly(const CachedRows& keys, const CachedRows& values, const TokenHeads<T>& token);
  template <class T>
  void attend_mixed(AttentionCache& cache, const CachedRows& keys, const CachedRows& values,
                    const AttentionTensors& tensors, const TokenHeads<T>& token);

  AttentionSpec spec_;
  kernels::ScoreParameters rule_;
  std::vector<RowVisits> rows_;  // memory
  std::vector<int64_t> first_rows_;
};

}  // namespace fovea
