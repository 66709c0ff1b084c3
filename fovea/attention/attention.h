// attention(): one call for every mechanism, with its context, its result and the choice of path.
//
// Shape suffixes: b batch, h query heads, g key/value heads, t queries, s keys, d key width, e
// value width.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fovea/attention/path_taken.h"
#include "fovea/attention/spec.h"

namespace fovea {

class PlanCache;  // plan.h
struct Places;    // places.h

/// Where the tokens of this call are. Undefined tensors mean: one document, keys 0 ... s-1, queries
/// the last t of them.
struct AttentionContext {
  at::Tensor query_positions_bt;  ///< int64, position in the document
  at::Tensor key_positions_bs;
  at::Tensor query_documents_bt;  ///< int64 or int32, any labels; equal = same document
  at::Tensor key_documents_bs;
  /// int64 [b]: row b has only the first so many of the s keys, and its queries are the last t of
  /// them (requests of unequal lengths in one batch). Instead of the four tensors above.
  at::Tensor key_lengths_b;
  /// The four tensors on the CPU, for calls on another device: plans are made from these. Without
  /// them the host waits for those above.
  std::shared_ptr<const Places> on_host;
  uint64_t dropout_seed = 0;  ///< of the batch; mixed with the row of the batch
  int64_t layer = 0;
  bool training = false;    ///< dropout acts only in training
  bool want_lse = false;    ///< some paths compute it only on request
  bool want_stats = false;  ///< telemetry: AttentionResult::stats
  bool want_tiles = false;  ///< telemetry: PathTaken::tiles
  /// Masks and ranges derived from the fields above, shared by the layers of one batch:
  /// std::make_shared<PlanCache>() once per batch. Without it every call derives its own.
  std::shared_ptr<PlanCache> plans;
};

/// A request for how to compute. `fused` throws UnsupportedError where there is no fused path.
enum class Path { automatic, fused, reference };
std::span<const std::string_view> enum_names(Path);

/// Telemetry per head, averaged over batch and rows, defined by the reference: [h] float32 each.
struct AttentionStats {
  at::Tensor entropy_h;         ///< nats
  at::Tensor largest_weight_h;  ///< mean over rows of the largest weight
  at::Tensor sink_mass_h;       ///< mean weight on the first position of the document
};

struct AttentionResult {
  at::Tensor out_bhte;
  /// Float32 (float64 for float64 inputs); includes the sink logit (7.5); undefined unless
  /// requested or free.
  at::Tensor lse_bht;
  AttentionStats stats;  ///< undefined unless requested; the fused kernels fill it as they go
  PathTaken path;
};

/// softmax-attention of q [b,h,t,d], k [b,g,s,d], v [b,g,s,e] (any strides). Differentiable in q,
/// k, v and AttentionTensors, lse included. Differential attention halves the heads of v and out.
/// Empty rows: output 0, lse -inf (or the sink logit), gradient 0. ShapeError / ConfigError /
/// UnsupportedError.
AttentionResult attention(const AttentionSpec& spec, const at::Tensor& q_bhtd,
                          const at::Tensor& k_bgsd, const at::Tensor& v_bgse,
                          const AttentionTensors& tensors = {},
                          const AttentionContext& context = {}, Path path = Path::automatic);

/// The definition: a composition of plain tensor operations, any dtype, any device (softmax in
/// float32, or float64 for float64).
AttentionResult reference_attention(const AttentionSpec& spec, const at::Tensor& q_bhtd,
                                    const at::Tensor& k_bgsd, const at::Tensor& v_bgse,
                                    const AttentionTensors& tensors = {},
                                    const AttentionContext& context = {});

/// Attention weights of chosen rows (maps): [b, heads.size(), queries.size(), s], float32, by
/// recomputation.
at::Tensor attention_rows(const AttentionSpec& spec, const at::Tensor& q_bhtd,
                          const at::Tensor& k_bgsd, const AttentionTensors& tensors,
                          const AttentionContext& context, std::span<const int64_t> heads,
                          std::span<const int64_t> queries);

/// AttentionStats by the reference: the definition.
AttentionStats attention_stats(const AttentionSpec& spec, const at::Tensor& q_bhtd,
                               const at::Tensor& k_bgsd, const AttentionTensors& tensors = {},
                               const AttentionContext& context = {});

/// The relation of the call as a boolean tensor [b or 1, 1, t, s] (reference and tests; kernels use
/// tile ranges).
at::Tensor allowed_mask(const MaskRule& rule, int64_t queries, int64_t keys,
                        const AttentionContext& context, at::Device device);

}  // namespace fovea
