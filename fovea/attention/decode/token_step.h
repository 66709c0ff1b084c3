// The token step: attention of the next token of every sequence, on the rows of a cache.
//
// A token reads rows of the cache's streams and adds its own. token_form() chooses one of three
// forms:
//
// - `decoder`: the compiled decoder (kernels/common/decoder.h), which reads and writes where
//   TokenRows says. It reads keys and values of a run of rows, or those that hard Focus chooses.
// - `kernels`: TokenStep, whose kernels read rows where they lie. It covers KV shifting,
//   convolutions and head mixes, soft gates of Focus, and hard Focus of mixed logits. It also
//   covers head output and first keys before a window (StreamingLLM, sinks, Longformer's globals).
// - `operations`: cached_attention(). The other forms have its numbers of one token (spec 3.6,
//   M-10).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "fovea/attention/attention.h"
#include "fovea/attention/cache/cache.h"
#include "fovea/attention/decode/token_gate.h"
#include "fovea/attention/mechanism.h"
#include "fovea/kernels/common/contract.h"

namespace fovea {

/// The form that computes a token of this layer; for `operations`, also the reason why no kernel
/// does.
TokenUse token_form(const AttentionSpec& spec);

/// The position bias of `spec` in the kernels' form, shared by all layers with that bias.
struct DecodeBias {
  at::Tensor alibi_h;  ///< slopes
  at::Tensor bias_hn;  ///< by distance
};
/// On `device`, where the table is.
DecodeBias decode_bias(const AttentionSpec& spec, const at::Tensor& bias_table, at::Device device);

/// The layer's rule in the kernels' form, without a learned temperature. It points into `bias` and
/// `sink_logit_h` (float32, contiguous, or undefined).
kernels::ScoreParameters decode_rule(const AttentionSpec& spec, const DecodeBias& bias,
                                     const at::Tensor& sink_logit_h);

/// The token's rows of all heads: [sequence][head][row 0].
template <class T>
struct TokenHeads {
  kernels::HeadRows<const T> q, k, v;
  kernels::HeadRows<const T> start_q;  ///< with StreamingLLM: queries of start keys
  kernels::HeadRows<T> out;
  const float* tau = nullptr;  ///< [sequence], where the temperature is learned
  TokenFocus focus;
};

class TokenStep {
 public:
  /// A spec whose token_form() is not `operations`, without hard Focus of unmixed logits; and its
  /// decode_rule().
  TokenStep(AttentionSpec spec, const kernels::ScoreParameters& rule);

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
