// The contract of the fused decoder: one token of each of some sequences through all layers (spec
// 7), on raw pointers. A model is described once. Each step says which sequences it is for.
//
// T is the number format of the activations and of the cache (float, BFloat16). Every intermediate
// result is rounded to T, as the layers' operations would round it one by one; sums are float32.
// Each matrix has a format of its own. Numbers that training may change are read through their
// pointers at every step.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fovea/kernels/common/activation.h"
#include "fovea/kernels/common/contract.h"
#include "fovea/kernels/common/scalar_formulas.h"
#include "fovea/kernels/common/weight_format.h"

namespace fovea::kernels {

/// A norm of the residual stream (7.1), or none at this place.
struct RowNorm {
  enum class Form : uint8_t { none, rms, layer };
  Form form = Form::none;
  const float *weight = nullptr, *bias = nullptr;  ///< null: 1 and 0

  bool present() const { return form != Form::none; }
};

/// Norm of queries and keys before the rotation (7.3): RMSNorm over all heads together, or per head
/// RMSNorm, LayerNorm, or scaling to a given length.
enum class HeadNorm : uint8_t { none, all_rms, rms, layer, length };

/// How the two halves of a block join the residual stream (7.2). `delta` and `sum` add one half
/// after the other, with a norm on each addend (`delta`) or on each sum. `parallel` adds both
/// together, from one x.
enum class BlockJoin : uint8_t { delta, sum, parallel };

/// A matrix and a bias.
struct Projection {
  WeightRows w;
  const float* bias = nullptr;
  int64_t outputs = 0;
};

/// tau of a sequence from the input y of its layer's attention (spec 10, F-1, F-3). It is
/// bounded_temperature() of:
/// - form token: bias + y.weight
/// - form prefix: bias + the mean of y.weight over all tokens so far
/// - form global: bias; weight is null
struct TokenTemperature {
  const float *weight = nullptr, *bias = nullptr;  ///< bias null: the temperature is constant
  bool prefix = false;
  TemperatureBounds bounds;
};

/// Groups of a token from the input y of its layer's attention (spec 11.1, U-14, U-24): the `top_k`
/// largest of z.c_k / temperature + potential_k, where z = scale W_g (y - mean). A token
/// reads the keys of its mask that are nearer than `window`, the first `sinks`, and those that
/// share a group with it (11.5).
struct TokenGroups {
  const float* weight = nullptr;      ///< W_g [features, width]; null: no Focus
  const float* mean = nullptr;        ///< [width]
  const float* centroids = nullptr;   ///< [groups, features]
  const float* potentials = nullptr;  ///< [groups]; null: 0
  const float* scale = nullptr;       ///< one number
  float temperature = 1.0f;
  int64_t features = 0, groups = 0, top_k = 0;
  int64_t window = 0, sinks = 0;

  bool present() const { return weight != nullptr; }
};

struct DecoderLayer {
  RowNorm attention_in, attention_out, ffn_in, ffn_out;
  Projection q, k, v, o, gate, up, down;  ///< gate without a matrix: no gate
  HeadNorm head_norm = HeadNorm::none;
  const float *q_gain = nullptr, *k_gain = nullptr;
  const float* q_length = nullptr;  ///< of HeadNorm::length: queries get it times the factor,
  float q_length_factor = 1.0f;     ///< keys length 1
  bool rotated = false;             ///< queries and keys, by TokenPosition
  /// With caller_attends: queries are rotated a second time, to this position at most
  /// (CallerTokens::start_q); negative: they are not.
  int64_t start_place = -1;
  TokenTemperature temperature;
  ScoreParameters rule;  ///< without tau, dropout and gate
  TokenGroups groups;
  /// Attention is the caller's (DecoderLayerStep::attention), who gets tau and the scores of
  /// `groups`; the rule has no use.
  bool caller_attends = false;
};

struct DecoderModel {
  int64_t width = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn_width = 0;
  int64_t rotary = 0;
  Activation activation = Activation::silu;
  BlockJoin join = BlockJoin::delta;
  float eps = 0.0f;
  std::vector<DecoderLayer> layers;
  RowNorm final_norm;
  Projection head;
  Activations activations = Activations::exact;  ///< as products with packed weights read them
};

/// Hard Focus on the CPU: which keys a token reads, once its groups are known (spec 11.5).
/// Functions on an object of the caller, one a layer and step. A device's decoder chooses itself.
struct KeyChoice {
  void* object = nullptr;
  /// The groups of each sequence's token, as bits. Called once, by one thread, while others write
  /// the token's key and value. Returns the rows of keys and values that the token of each sequence
  /// reads, valid until keep(); empty: all.
  IntRows (*choose)(void* object, std::span<const uint64_t> members) = nullptr;
  /// Called by one thread when the token's key and value are written.
  void (*keep)(void* object) = nullptr;
};

/// The tokens of all sequences, for attention that the caller computes.
template <class T>
struct CallerTokens {
  const T* y = nullptr;           ///< [sequences, width], the input of the layer's attention
  const T* q = nullptr;           ///< [sequences, heads, head_dim], normed and rotated
  const T* start_q = nullptr;     ///< the same for DecoderLayer::start_place, or null
  const float* tau = nullptr;     ///< [sequences]; null where the layer learns no temperature
  const float* scores = nullptr;  ///< [sequences, groups] of TokenGroups; null without them
  T* out = nullptr;               ///< [sequences, heads, head_dim], written by the caller
};

/// Attention that the caller computes, between a layer's heads and its output projection. The
/// token's keys and values stand where DecoderLayerStep::caches say; how long they stay is the
/// caller's matter.
template <class T>
struct CallerAttention {
  void* object = nullptr;
  /// Called by the thread that called run(), alone.
  void (*attend)(void* object, const CallerTokens<T>& tokens) = nullptr;
};

/// One sequence in the cache of a layer.
struct SequenceStep {
  int64_t first = 0;    ///< row of the buffer that is key 0, or would be behind shared keys
  int64_t key_row = 0;  ///< of the new token, counted from `first`: it is written
  RowVisits seen;       ///< of the keys; with KeyChoice all
  double* temperature_sum = nullptr;  ///< form prefix: written; the one before it is read
  uint64_t* members =
      nullptr;  ///< with groups on a device: of key 0 on; the new token's is written
};

/// Keys and values that several sequences read: those of a sequence up to key `end`, from the run
/// before on. Key n is row n; the batch stride has no use.
template <class T>
struct SharedRun {
  int64_t end = 0;  ///< a multiple of kSharedKeys
  HeadRows<T> keys, values;
};
constexpr int64_t kSharedKeys = 128;

/// The rows of one sequence in the cache of a layer; the batch stride has no use.
template <class T>
struct SequenceCache {
  HeadRows<T> keys, values;
  std::span<const SharedRun<T>> shared = {};  ///< they come before keys and values
};

template <class T>
struct DecoderLayerStep {
  std::span<const SequenceCache<T>> caches;  ///< of each sequence
  std::span<const SequenceStep> sequences;
  KeyChoice choice;              ///< with groups
  CallerAttention<T> attention;  ///< with caller_attends
};

/// The token of one sequence in its text.
struct TokenPosition {
  int64_t position = 0;
  const float *cos = nullptr, *sin = nullptr;  ///< [position][rotary / 2], where layers rotate
};

/// The next token of every sequence of the step. Texts differ in lengths and in tables.
template <class T>
struct DecoderStep {
  std::span<const TokenPosition> tokens;  ///< one a sequence
  std::span<const DecoderLayerStep<T>> layers;
  const T* x = nullptr;     ///< [sequences, width]: the embedded tokens
  float* logits = nullptr;  ///< [sequences, head.outputs]
};

/// A model and the buffers of its steps, made by a backend; they grow with the sequences of a step.
/// T = float and BFloat16. Not thread-safe.
template <class T>
class Decoder {
 public:
  virtual ~Decoder() = default;
  /// ShapeError where the step does not fit the model.
  virtual void run(const DecoderStep<T>& step) = 0;
};

}  // namespace fovea::kernels
