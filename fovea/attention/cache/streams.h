// The streams of a layer's cache: which rows a mechanism needs, and how many of them it keeps.
//
// Keys and values are always there; a learned prefix temperature adds "temperature" (the running
// sum after every token, so that truncation is exact); key-query convolutions add "queries" with
// the (cq-1) + (cq'-1) queries before the current one (3.6, M-10), and "tau" with theirs where it
// is learned. Focus keeps "groups" or "members" of every key, and "group_scores" with potentials by
// chunk; routing keeps "routes", the clusters of every key, and "nearness"; Longformer with
// projections "global_keys" and "global_values". Performer keeps "feature_sums", a state behind the
// last token, in place of keys and values. KV shifting adds "unshifted_keys" and
// "unshifted_values", whose last row the next token reads.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fovea/attention/spec.h"

namespace fovea {

/// Names of the streams.
namespace stream {
inline constexpr const char* kKeys = "keys";
inline constexpr const char* kValues = "values";
inline constexpr const char* kTemperature = "temperature";
inline constexpr const char* kQueries = "queries";
inline constexpr const char* kTau = "tau";
inline constexpr const char* kGroups = "groups";
inline constexpr const char* kMembers = "members";
inline constexpr const char* kGroupScores = "group_scores";
inline constexpr const char* kRoutes = "routes";
inline constexpr const char* kNearness = "nearness";
inline constexpr const char* kFeatureSums = "feature_sums";
inline constexpr const char* kGlobalKeys = "global_keys";
inline constexpr const char* kGlobalValues = "global_values";
inline constexpr const char* kUnshiftedKeys = "unshifted_keys";
inline constexpr const char* kUnshiftedValues = "unshifted_values";
}  // namespace stream

/// One stream: rows [b, n, row_shape...].
struct StreamSpec {
  std::string name;
  std::vector<int64_t> row_shape;  ///< shape of one row without batch: keys {g, d}
  at::ScalarType dtype = at::kFloat;
  int64_t keep_first = 0;  ///< with keep_last > 0: rows never evicted at the start (sinks)
  int64_t keep_last = 0;   ///< rows kept at the end; 0 = all
  /// Rows {g, d} lie head by head in memory: for what reads a head from end to end. Else token by
  /// token: for lists of tokens that all heads share.
  bool by_head = false;
  /// One row, of all tokens so far, which AttentionCache::replace() follows: no way back from it.
  bool state = false;

  bool operator==(const StreamSpec&) const = default;
};

/// The streams that `spec` needs.
std::vector<StreamSpec> cache_streams(const AttentionSpec& spec, at::ScalarType dtype);

/// Whether a token's tau depends on those before it.
bool keeps_prefix_sum(const TemperatureSpec& spec);

/// Tail rows that a stream holds at rest.
int64_t resting_rows(const StreamSpec& spec, int64_t capacity);

/// [batch, rows, row_shape...].
std::vector<int64_t> rows_shape(const StreamSpec& spec, int64_t batch, int64_t rows);

/// Bytes of HugePages that a cache of these streams takes.
int64_t cache_bytes(const std::vector<StreamSpec>& streams, int64_t batch, int64_t capacity);

}  // namespace fovea
