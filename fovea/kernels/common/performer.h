// Performer by prefix sums: causal attention over positive random features, in time and memory
// linear in the tokens, forward and backward (FAVOR+; spec 4.2).
//
//   x' = factor x,   phi(x)_r = m^-1/2 exp(w_r . x' - |x'|^2 / 2)
//   o_i = phi(q_i) . S_i / phi(q_i) . z_i,   S_i = sum_{j <= i} phi(k_j) v_j^T,  z_i = sum phi(k_j)
//
// Tokens go by chunks of kPerformerChunk: pairs inside a chunk as a masked product, earlier chunks
// by the state (S, z, R). R is the largest exponent of a key so far; S and z are scaled by e^-R,
// so that nothing overflows and a row knows of no later key. Everything is float32.
//
// Legend: m features, d key width, e value width, C tokens of a chunk.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fovea/kernels/common/bfloat16.h"
#include "fovea/kernels/common/contract.h"

namespace fovea::kernels {

/// Tokens of a chunk: pairs cost C (m + e) a token, states for the backward pass m e / C numbers.
inline constexpr int64_t kPerformerChunk = 64;
/// Rows of scratch are padded to whole vectors of the widest instruction set.
inline constexpr int64_t kPerformerLanes = 16;

FOVEA_INLINE constexpr int64_t padded_lanes(int64_t n) {
  return (n + kPerformerLanes - 1) / kPerformerLanes * kPerformerLanes;
}

/// A state is [m, performer_state_width(e)], with S in columns [0, e) and z in column c =
/// padded_lanes(e). Row 0 also has R in column c + 1, and 1 in column c + 2 once there are keys.
/// Zeros are the state of no keys.
FOVEA_INLINE constexpr int64_t performer_state_width(int64_t value_width) {
  return padded_lanes(value_width) + kPerformerLanes;
}

/// Tokens [begin, end) of one document; `starts`: the document's first.
struct PerformerChunk {
  int64_t begin = 0, end = 0;
  bool starts = true;
};

/// Appends the chunks of documents that begin at `borders` (ascending, the first is 0) and end at
/// `tokens`.
void add_performer_chunks(std::span<const int64_t> borders, int64_t tokens,
                          std::vector<PerformerChunk>& chunks);

struct PerformerInputs {
  int64_t batch = 0, heads = 0, kv_heads = 0, tokens = 0, key_width = 0, value_width = 0;
  int64_t features = 0;
  const float* directions = nullptr;  ///< w [m, d]
  float key_factor = 1.0f;
  float query_factor = 1.0f;   ///< divided by tau where it is given
  const float* tau = nullptr;  ///< [batch][tokens]; may be null
  HeadRows<const float> q, k, v;
  /// Chunks in order, of all sequences alike or of one sequence after the other.
  std::span<const PerformerChunk> chunks;
  /// Where those of a sequence begin, and their number: 2 or batch + 1 entries.
  std::span<const int64_t> chunk_begin;

  std::span<const PerformerChunk> chunks_of(int64_t b) const {
    const size_t n = chunk_begin.size() == 2 ? 0 : static_cast<size_t>(b);
    return chunks.subspan(chunk_begin[n], chunk_begin[n + 1] - chunk_begin[n]);
  }
  int64_t most_chunks() const;
  int64_t state_size() const { return features * performer_state_width(value_width); }
};

struct PerformerForward {
  PerformerInputs in;
  HeadRows<float> out;
  float* lse = nullptr;  ///< [batch][heads][tokens]; may be null
  /// [batch][kv_heads][most_chunks()][state]: before every chunk that does not start, for the
  /// backward pass; may be null.
  float* states = nullptr;
  /// [batch][kv_heads][state]: of the tokens before, replaced by that after the last one; may be
  /// null. With it the first chunk continues.
  float* running = nullptr;
};

struct PerformerBackward {
  PerformerInputs in;
  HeadRows<const float> out, dout;
  const float* dlse = nullptr;    ///< [batch][heads][tokens]; null: zeros
  const float* states = nullptr;  ///< of the forward pass
  HeadRows<float> dq, dk, dv;     ///< all elements are written
  float* dtau = nullptr;          ///< [batch][heads][tokens], to be summed over heads; needs tau
};

}  // namespace fovea::kernels
