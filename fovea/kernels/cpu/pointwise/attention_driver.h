// Shared parts of the forward and backward drivers: the table in force, packed sizes, checks
// (internal to kernels/cpu).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "fovea/base/rng.h"
#include "fovea/kernels/cpu/float_buffer.h"
#include "fovea/kernels/cpu/pointwise/attention.h"
#include "fovea/kernels/cpu/pointwise/attention_table.h"
#include "fovea/kernels/cpu/team.h"

namespace fovea::kernels {

template <class T>
const AttentionTable<T>& attention_table();

/// `given`, or the kernels of the instruction set in force.
template <class T>
const AttentionTable<T>& table_or(const AttentionTable<T>* given) {
  return given != nullptr ? *given : attention_table<T>();
}

/// Memory for packed operands of the calling thread's next call, kept from call to call. Fresh
/// memory costs a page fault per 4 KiB: a quarter of the backward pass at 1024 tokens. Without
/// NDEBUG it is fresh and holds NaN, so that tests notice what is read before it is written, and
/// sanitizers what is touched behind it.
inline float* packed_memory(int64_t floats) {
#ifdef NDEBUG
  constexpr int64_t kKept = 64 << 20;  // 256 MiB: gradients of mixing at 2048 tokens
#else
  constexpr int64_t kKept = 0;
#endif
  thread_local FloatBuffer buffer(0);
  thread_local int64_t size = 0;
  if (floats > size || size > kKept) {
    buffer = FloatBuffer(0);  // the old one goes first
    buffer = FloatBuffer(floats);
    size = floats;
  }
#ifndef NDEBUG
  std::fill_n(buffer.data(), floats, std::numeric_limits<float>::quiet_NaN());
#endif
  return buffer.data();
}

constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

template <class T>
PackedWidth packed_width(const AttentionTable<T>& table, int64_t elements) {
  const int64_t words = elements / table.elements;
  return {.elements = elements,
          .words = words,
          .pitch = round_up(words, table.lanes),
          .columns = round_up(elements, table.lanes)};
}

inline const Visits& visits_of(std::span<const Visits> visits, int64_t b) {
  return visits[visits.size() == 1 ? 0 : static_cast<size_t>(b)];
}

inline PlaceColumns columns_of(const TokenColumns& tokens) {
  return {tokens.position.data(), tokens.document.data(), tokens.pattern_id.data(),
          tokens.open.data()};
}

/// Logits are scaled products, times a gate at most; `gate` is the form in force.
inline bool is_linear(const ScoreParameters& rule, PairGate::Form gate) {
  return rule.soft_cap == 0.0f && rule.alibi == nullptr && rule.distance_bias == nullptr &&
         rule.dropout == 0.0f && gate != PairGate::Form::log_sigmoid;
}

/// Logits are scaled products.
inline bool is_plain(const ScoreParameters& rule, PairGate::Form gate) {
  return is_linear(rule, gate) && gate != PairGate::Form::sigmoid_logit;
}

inline HeadRule head_rule(const ScoreParameters& rule, int64_t b, int64_t h) {
  return {.soft_cap = rule.soft_cap,
          .cap_exponent =
              rule.soft_cap > 0.0f ? 2.0f * std::numbers::log2e_v<float> / rule.soft_cap : 0.0f,
          .alibi = rule.alibi != nullptr ? rule.alibi[h] : 0.0f,
          .distance_bias =
              rule.distance_bias != nullptr ? rule.distance_bias + h * rule.bias_count : nullptr,
          .bias_first = static_cast<int32_t>(rule.bias_first),
          .bias_count = static_cast<int32_t>(rule.bias_count),
          .dropout = rule.dropout,
          .dropout_seed = mix_seed(rule.dropout_seed, static_cast<uint64_t>(b)),
          .dropout_stream =
              (static_cast<uint64_t>(rule.dropout_layer) << 32) | static_cast<uint64_t>(h)};
}

/// Numbers of one head's queries that the backward pass reads (BackwardHead).
struct RowNumbers {
  float *lse2 = nullptr, *delta = nullptr, *scale = nullptr;
};

/// Numbers of queries [begin, end) of a head, neutral ones beyond those that exist.
template <class T, template <class> class Problem>
void number_queries(const AttentionTable<T>& table, const Problem<T>& p, int64_t b, int64_t head,
                    int64_t begin, int64_t end, const RowNumbers& to) {
  const AttentionSizes& s = p.sizes;
  const int64_t real = std::max(std::min(end, s.queries), begin);
  const int64_t row = (b * s.heads + head) * s.queries + begin;
  table.delta({.out = p.out.at(b, head, begin),
               .dout = p.dout.at(b, head, begin),
               .rest = p.out_rest.at_or_null(b, head, begin),
               .out_row = p.out.row,
               .dout_row = p.dout.row,
               .rest_row = p.out_rest.row,
               .dlse = p.dlse != nullptr ? p.dlse + row : nullptr,
               .lse = p.lse + row,
               .rows = real - begin,
               .width = s.value_dim,
               .delta = to.delta + begin,
               .lse2 = to.lse2 + begin});
  for (int64_t i = begin; i < real; ++i)
    to.scale[i] = p.rule.tau != nullptr ? 1.0f / p.rule.tau[b * s.queries + i] : p.rule.scale;
  for (int64_t i = real; i < end; ++i) {
    to.scale[i] = to.delta[i] = 0.0f;
    to.lse2[i] = std::numeric_limits<float>::infinity();
  }
}

/// Adds to the gradient of a head's sink: P_sink = e^(z - lse), value 0. `delta` is the head's.
template <class T, template <class> class Problem>
void sink_gradient(const Problem<T>& p, int64_t b, int64_t head, const float* delta) {
  if (p.dsink == nullptr) return;
  const AttentionSizes& s = p.sizes;
  const int64_t at = b * s.heads + head;
  const double z = p.rule.sink_logit[head];
  double total = 0.0;
  for (int64_t i = 0; i < s.queries; ++i)
    total -= std::exp(z - p.lse[at * s.queries + i]) * delta[i];
  p.dsink[at] = static_cast<float>(total);
}

/// Work below this many products is done by one thread: starting others costs about 5 us.
constexpr int64_t kParallelProducts = 1 << 20;

inline int64_t products(const AttentionSizes& s) {
  return s.batch * s.heads * s.queries * s.keys * (s.head_dim + s.value_dim);
}

/// Enough to share evenly.
constexpr int64_t kItemsPerThread = 8;

/// How many key heads are packed and worked on together. One thread: as many as a second-level
/// cache holds (1 MiB), so that packed operands are read where they were written. Several threads
/// meet after each group, which costs them up to a time slice on a busy machine: larger groups, and
/// enough items to share evenly. Results do not depend on it.
inline int64_t heads_together(int64_t all, int64_t floats, int64_t items) {
  const int64_t threads = omp_get_max_threads();
  const int64_t cache_floats = threads == 1 ? 1 << 18 : 1 << 20;
  const int64_t wanted = threads == 1 ? 1 : kItemsPerThread * threads / std::max<int64_t>(items, 1);
  return std::clamp(std::max(cache_floats / std::max<int64_t>(floats, 1), wanted), int64_t{1}, all);
}

/// UnsupportedError or ShapeError.
void check_sizes(const AttentionSizes& sizes, const PairGate& gate);
void check_sizes(const AttentionSizes& sizes, const PairGate& gate, std::span<const Visits> visits);

}  // namespace fovea::kernels
