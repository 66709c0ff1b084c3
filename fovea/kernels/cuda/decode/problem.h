// Arguments of the CUDA decoder's kernels: parameters of a launch, which a recorded graph keeps,
// and numbers of one step, which the host writes into the GPU's memory before.
//
// Numbers are bfloat16 (as uint16_t), sums float32; rows are sequences.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/kernels/common/decoder.h"
#include "fovea/kernels/common/token_draws.h"

namespace fovea::kernels::cuda {

// -- one step --

/// The token of one sequence.
struct TokenNumbers {
  int64_t position = 0;
  const float *cos = nullptr, *sin = nullptr;
};

/// Shared keys of one sequence up to key `end`; key n is row n.
struct RunNumbers {
  const uint16_t *keys = nullptr, *values = nullptr;
  int32_t end = 0;
  int32_t key_row = 0, key_head = 0, value_row = 0, value_head = 0;
};

/// One sequence in the cache of a layer (SequenceStep, SequenceCache).
struct SequenceNumbers {
  uint16_t *keys = nullptr, *values = nullptr;  ///< of key 0, which may be shared and not there
  double* temperature_sum = nullptr;
  uint64_t* members = nullptr;                                       ///< of key 0 on
  int32_t key_row = 0, key_head = 0, value_row = 0, value_head = 0;  ///< strides
  int32_t written = 0;                                               ///< the new token's key
  int32_t far_begin = 0, far_end = 0, far_shift = 0;
  int32_t near_begin = 0, near_end = 0, near_shift = 0;
  int32_t first_run = 0, runs = 0;
};

/// In the GPU's memory.
struct StepNumbers {
  const uint16_t* x = nullptr;  ///< [rows][width]
  float* logits = nullptr;      ///< [rows][outputs]
  const TokenNumbers* tokens = nullptr;
  const SequenceNumbers* sequences = nullptr;  ///< [layers][rows]
};

// -- launches --

/// The end of a half of a block: the residual stream takes it, and its norm is the next product's
/// input.
struct StreamParameters {
  const StepNumbers* step = nullptr;                   ///< read where x is null
  const uint16_t* x = nullptr;                         ///< [rows][width]
  uint16_t* sum = nullptr;                             ///< x and the addends; null: not kept
  const uint16_t *first = nullptr, *second = nullptr;  ///< addends [rows][width]; null: none
  bool norm_of_sum = false;                            ///< `after` acts on the sum, not the addend
  RowNorm after, before;
  float eps = 0.0f;
  int width = 0, rows = 0;
  uint16_t* y = nullptr;  ///< before(sum) [rows][width], where it is not the product's own
  TokenTemperature temperature;
  int layer = 0;         ///< whose temperature it is
  float* tau = nullptr;  ///< [rows]
};

struct ProductMatrix {
  const uint16_t* w = nullptr;  ///< [outputs][inputs]
  const float* bias = nullptr;
  int outputs = 0;
};

enum class ProductEnd : uint8_t { narrow, activation, gate, logits };

/// y = x w^T of up to three matrices side by side; with a gate, of `matrices[0]` (gate) and
/// `matrices[1]` (up) together.
struct ProductParameters {
  StreamParameters stream;      ///< of the fused form
  const uint16_t* x = nullptr;  ///< [rows][inputs], of the other
  ProductMatrix matrices[3];
  int inputs = 0, rows = 0;
  int tiles = 0;  ///< blocks of outputs; those behind them are of features (of the launch)
  ProductEnd end = ProductEnd::narrow;
  Activation activation = Activation::silu;
  uint16_t* y = nullptr;  ///< [rows][y_stride]
  int y_stride = 0;
  /// The features of hard Focus as further outputs, before their scale.
  TokenGroups groups;
  float* features = nullptr;  ///< [rows][groups.features]
};

/// Parts that the keys of one sequence are cut into, at most.
inline constexpr int kMostSplits = 128;

struct DecodeAttentionParameters {
  const TokenNumbers* tokens = nullptr;
  const SequenceNumbers* sequences = nullptr;
  const RunNumbers* runs = nullptr;
  const uint16_t* qkv = nullptr;  ///< [rows][(heads + 2 kv_heads) d]
  int layer = 0, rows = 0, heads = 0, kv_heads = 0, head_dim = 0, rotary = 0;
  HeadNorm head_norm = HeadNorm::none;
  const float *q_gain = nullptr, *k_gain = nullptr, *q_length = nullptr;
  float q_length_factor = 1.0f, eps = 0.0f;
  ScoreParameters rule;             ///< tau: [rows]
  TokenGroups groups;               ///< a token reads what they show it, if present
  const float* features = nullptr;  ///< [rows][groups.features]
  int splits = 1;                   ///< of the keys
  float* parts = nullptr;   ///< [rows][heads][splits][d + 2]: sums, largest score, sum of weights
  int* arrived = nullptr;   ///< [rows][kv_heads][heads of a key head / 4]: zeros between launches
  uint16_t* out = nullptr;  ///< [rows][heads d]
};

struct DrawParameters {
  const float* logits = nullptr;     ///< [texts][row]
  const TokenDraw* draws = nullptr;  ///< [texts]
  int32_t* chosen = nullptr;         ///< [texts]
  int tokens = 0, texts = 0;
  int64_t row = 0;
};

}  // namespace fovea::kernels::cuda
