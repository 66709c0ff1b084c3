// The choices of a decoder's architecture, each one a recipe key (spec 6, 7).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "fovea/config/fields.h"

namespace fovea {

/// Normalisation of the residual stream (7.1): RMSNorm or LayerNorm, with weight and bias, with
/// weight alone, or with neither.
enum class NormKind { rms, layer, layer_no_bias, rms_weightless, layer_weightless };
std::span<const std::string_view> enum_names(NormKind);

/// Places of the norms around f, attention or the feed-forward (7.2). All but `post` have a final
/// norm.
/// - `pre`: x += f(N(x))
/// - `post`: x = N(x + f(x))
/// - `sandwich`: x += N'(f(N(x))) (Gemma-2)
/// - `output`: x += N(f(x)) (OLMo-2)
/// - `parallel`: x += Attn(N(x)) + FFN(N(x)) (GPT-J, PaLM)
/// - `parallel_two`: the same with a norm for each (NeoX)
enum class BlockLayout { pre, post, sandwich, output, parallel, parallel_two };
std::span<const std::string_view> enum_names(BlockLayout);

/// W2 a(W1 x), or with a gate W2 (a(W1 x) * W3 x) (7.4): glu sigmoid, reglu ReLU, geglu GELU,
/// swiglu SiLU. `gelu_tanh` and `geglu_tanh` are the tanh form.
enum class FeedForward {
  relu,
  relu_squared,
  gelu,
  gelu_tanh,
  silu,
  elu,
  glu,
  reglu,
  geglu,
  geglu_tanh,
  swiglu
};
std::span<const std::string_view> enum_names(FeedForward);
/// Whether it has the third matrix.
bool gated(FeedForward kind);

/// Normalisation of queries and keys (7.3). `head_rms`: RMSNorm per head with a gain [d] shared by
/// heads, before RoPE (Qwen3). `full_rms`: over all heads together, gains [H d] and [Hkv d]
/// (OLMo-2). `head_layer`: LayerNorm per head with a gain [d]. `l2`: unit vectors times one learned
/// number g a layer, in place of 1/sqrt(d) (Henry et al. 2020). `weightless`: RMS per head without
/// a gain, on layers with RoPE only (Llama-4; before or after the rotation is the same).
enum class QkNorm { none, head_rms, full_rms, head_layer, l2, weightless };
std::span<const std::string_view> enum_names(QkNorm);

/// Source of a token's place beside attention.bias (6.1, 6.5, 6.6). `sinusoidal` and `learned` are
/// added to the embeddings.
enum class Positions { rope, none, sinusoidal, learned };
std::span<const std::string_view> enum_names(Positions);

/// How matrices start. `width`: truncated normal, standard deviation 1/sqrt(D), the feed-forward's
/// last 1/sqrt(its width) (3.5). `fan_in`: truncated normal, 1/sqrt(inputs). `torch`:
/// +-1/sqrt(inputs), uniform (1.3), embeddings N(0, 1). `normal`: N(0, std); `gpt2`: the same with
/// what writes to the residual stream divided by sqrt(2 layers).
struct InitSpec {
  enum class Kind { width, fan_in, torch, normal, gpt2 };
  Kind kind = Kind::width;
  double std = 0.02;  ///< of `normal` and `gpt2`

  void describe(FieldVisitor& v);
  bool operator==(const InitSpec&) const = default;
};
std::span<const std::string_view> enum_names(InitSpec::Kind);

/// Which projections add a bias.
struct BiasKeys {
  bool qkv = false, output = false, feed_forward = false;

  void describe(FieldVisitor& v);
  bool operator==(const BiasKeys&) const = default;
};

/// Layers that see everything where attention.mask is local (6.5).
struct FullLayers {
  int64_t every = 0;            ///< n: layers n-1, 2n-1, ...; 0 = none by rule
  std::vector<int64_t> layers;  ///< further ones, from 0
  bool positions = true;        ///< false: no RoPE there (Command-A, Llama-4)

  bool contains(int64_t layer) const;
  bool any() const { return every > 0 || !layers.empty(); }
  void describe(FieldVisitor& v);
  bool operator==(const FullLayers&) const = default;
};

}  // namespace fovea
