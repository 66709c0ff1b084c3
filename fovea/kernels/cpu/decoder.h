// One token of a few sequences through a whole decoder (spec 7), on raw pointers: what decoding
// does between two samples.
//
// Time is that of reading the weights once. All threads walk through the layers together and meet
// seven times a layer; what is as small as a row of the residual stream every thread computes for
// itself instead of waiting for another. Results have the same bits for any number of threads and
// any number of rows. The instruction set is chosen_isa().
//
// T is the number format of the activations and of the cache (float, BFloat16): every intermediate
// result is rounded to it, as the layers' operations one by one would do it; sums are float32. W is
// that of the matrices.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fovea/kernels/cpu/attention.h"
#include "fovea/kernels/cpu/decoder_table.h"

namespace fovea::kernels {

/// A norm of the residual stream (7.1), or none at this place.
struct RowNorm {
  enum class Form : uint8_t { none, rms, layer };
  Form form = Form::none;
  const float *weight = nullptr, *bias = nullptr;  ///< null: 1 and 0

  bool present() const { return form != Form::none; }
};

/// What happens to queries and keys before the rotation (7.3): RMSNorm over all heads together, or
/// per head RMSNorm, LayerNorm, or a vector of given length.
enum class HeadNorm : uint8_t { none, all_rms, rms, layer, length };

/// Where the two halves of a block join the residual stream (7.2): one after the other, the norm
/// after each on what is added (`delta`) or on the sum, or both together from one x.
enum class BlockJoin : uint8_t { delta, sum, parallel };

/// W [outputs, inputs] contiguous, and a bias.
template <class W>
struct Projection {
  const W* w = nullptr;
  const float* bias = nullptr;
  int64_t outputs = 0;
};

/// tau of a sequence from the input y of its layer's attention (spec 10, F-1, F-3): the bounded sum
/// of `bias` and y.weight (form token), its mean over all tokens so far (form prefix, with `sums`)
/// or nothing (form global, without a weight).
struct TokenTemperature {
  const float *weight = nullptr, *bias = nullptr;  ///< bias null: the temperature is constant
  double* sums = nullptr;  ///< of sequence b at sums[b * sums_batch]; the one before it is read
  int64_t sums_batch = 0;
  double low = 0.0, high = 0.0;
  bool sigmoid = false;  ///< maps smoothly into the bounds instead of clipping
};

/// Hard Focus: which keys a token reads, once its groups are known (spec 11.5). One object a layer
/// and token.
class KeyChoice {
 public:
  virtual ~KeyChoice() = default;
  /// The groups of each sequence's token, as bits. Called once, by one thread, while others write
  /// the token's key and value.
  virtual void choose(std::span<const uint64_t> members) = 0;
  /// Rows of keys and values that the token of each sequence reads; empty: all. After choose().
  virtual std::span<const std::vector<int32_t>> seen() const = 0;
  /// Called by one thread when the token's key and value are written.
  virtual void keep() = 0;
};

/// Groups of a token from the input y of its layer's attention (spec 11.1, U-14, U-24): the `top_k`
/// largest of z.c_k / temperature + potential_k, where z = scale W_g (y - mean).
struct TokenGroups {
  const float* weight = nullptr;      ///< W_g [features, width]; null: no Focus
  const float* mean = nullptr;        ///< [width]
  const float* centroids = nullptr;   ///< [groups, features]
  const float* potentials = nullptr;  ///< [groups]; null: 0
  float scale = 1.0f, temperature = 1.0f;
  int64_t features = 0, groups = 0, top_k = 0;
  KeyChoice* choice = nullptr;

  bool present() const { return weight != nullptr; }
};

template <class T, class W>
struct DecoderLayer {
  RowNorm attention_in, attention_out, ffn_in, ffn_out;
  Projection<W> q, k, v, o, gate, up, down;  ///< gate.w null: no gate
  HeadNorm head_norm = HeadNorm::none;
  const float *q_gain = nullptr, *k_gain = nullptr;
  float q_length = 1.0f;                       ///< of HeadNorm::length; keys have length 1
  const float *cos = nullptr, *sin = nullptr;  ///< [position][rotary / 2]; null: no rotation
  TokenTemperature temperature;
  ScoreParameters rule;      ///< without tau, dropout and gate
  HeadRows<T> keys, values;  ///< the cache
  int64_t key_row = 0;       ///< of the new token: it is written
  int64_t key_count = 0;     ///< rows that a token sees, the new one included, at most
  RowVisits seen;            ///< of the cache, by every sequence; with groups all
  TokenGroups groups;
};

/// The call. All sequences have the same length.
template <class T, class W>
struct DecoderToken {
  int64_t rows = 0;  ///< sequences, 1 ... kMatVecRows
  int64_t width = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn_width = 0;
  int64_t position = 0, rotary = 0;
  Activation activation = Activation::silu;
  BlockJoin join = BlockJoin::delta;
  float eps = 0.0f;
  std::span<const DecoderLayer<T, W>> layers;
  RowNorm final_norm;
  Projection<W> head;
  const T* x = nullptr;     ///< [rows, width]: the embedded tokens
  float* logits = nullptr;  ///< [rows, head.outputs]
};

/// For T, W = float and BFloat16. UnsupportedError for widths without an attention kernel.
template <class T, class W>
void run(const DecoderToken<T, W>& token);

}  // namespace fovea::kernels
