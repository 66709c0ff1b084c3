// The streams of a layer's cache: which rows are kept, how many of them, what a call adds to them
// and reads of them. Keys and values are there by default; mechanisms add and remove streams
// (Mechanism::add_streams). stream_rows.h makes the streams of a tensor of the call.
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

class AttentionCache;  // cache.h
struct AttentionCall;  // call.h

/// Names of the streams that more than their mechanism reads.
namespace stream {
inline constexpr const char* kKeys = "keys";
inline constexpr const char* kValues = "values";
inline constexpr const char* kTemperature = "temperature";  ///< running sums of prefix means
inline constexpr const char* kQueries = "queries";          ///< that convolutions reach back to
inline constexpr const char* kTau = "tau";  ///< of the queries that convolutions reach back to
inline constexpr const char* kGroups = "groups";
inline constexpr const char* kMembers = "members";
inline constexpr const char* kFeatureSums = "feature_sums";
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
  /// The rows [b, t, row_shape...] of a call's t tokens, which are appended before it attends;
  /// null: the mechanism appends them elsewhere.
  at::Tensor (*new_rows)(const AttentionCall& call, const AttentionCache& cache) = nullptr;
  /// Sets what the call reads of all kept rows; null: the mechanism reads them elsewhere.
  void (*set_rows)(AttentionCall& call, const at::Tensor& rows) = nullptr;

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
