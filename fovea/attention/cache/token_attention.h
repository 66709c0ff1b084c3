// Attention of the next token of every sequence of a cache, without tensor operations: KV shifting,
// convolutions and head mixes, soft gates of Focus, hard Focus of mixed logits, and first keys
// before a window (StreamingLLM, sinks, Longformer's globals). The kernels read rows where the
// cache keeps them.
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
#include "fovea/attention/cache/token_gate.h"
#include "fovea/kernels/common/contract.h"

namespace fovea {

/// Why TokenAttention is not for a spec.
std::optional<std::string> why_not_token_attention(const AttentionSpec& spec);

/// The token's rows of all heads: [sequence][head][row 0].
template <class T>
struct TokenHeads {
  kernels::HeadRows<const T> q, k, v;
  kernels::HeadRows<const T> start_q;  ///< with StreamingLLM: queries of start keys
  kernels::HeadRows<T> out;
  const float* tau = nullptr;  ///< [sequence], where the temperature is learned
  TokenFocus focus;
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
  /// The tau of sequence b's queries, the last of which is the token; null where the temperature
  /// is constant. The token's own joins those of earlier queries where they are kept.
  const float* tau_of(const CachedRows& taus, const float* token, int64_t b) const;
  /// Also writes lse [sequence][head] if it is not null.
  template <class T>
  void attend_plainly(const CachedRows& keys, const CachedRows& values, const TokenHeads<T>& token,
                      float* lse);
  template <class T>
  void attend_after_first(const CachedRows& keys, const CachedRows& values,
                          const TokenHeads<T>& token);
  template <class T>
  void attend_mixed(AttentionCache& cache, const CachedRows& keys, const CachedRows& values,
                    const AttentionTensors& tensors, const TokenHeads<T>& token);

  AttentionSpec spec_;
  kernels::ScoreParameters rule_;
  TokenGate gate_;
  std::vector<RowVisits> rows_;  // memory
  std::vector<int64_t> first_keys_;
  std::vector<uint64_t> first_seen_;
  std::vector<float> lse_;
};

}  // namespace fovea
