// StreamSpec: one stream of a layer's cache; CachedStreams: the streams as mechanisms see them.
//
// A stream says which rows are kept, how many of them, what a call adds to them and reads of them.
// stream_rows.h makes the streams of a tensor of the call.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

class CachedStreams;
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
  at::Tensor (*new_rows)(const AttentionCall& call, const CachedStreams& cache) = nullptr;
  /// Sets what the call reads of all kept rows; null: the mechanism reads them elsewhere.
  void (*set_rows)(AttentionCall& call, const at::Tensor& rows) = nullptr;

  bool operator==(const StreamSpec&) const = default;
};

/// The rows of a cache by stream (cache/cache.h).
class CachedStreams {
 public:
  virtual ~CachedStreams() = default;
  /// Appends rows [b, n, row_shape...] to a stream. All streams of a step must receive the same n.
  /// UnsupportedError past capacity.
  virtual void append(std::string_view name, const at::Tensor& rows_bn) = 0;
  /// Kept rows in order: [b, rows, row_shape...], a view where the stream keeps no first rows.
  /// ShapeError where the lengths differ.
  virtual at::Tensor rows(std::string_view name) const = 0;
  /// Those of one sequence, [1, rows, row_shape...].
  virtual at::Tensor rows(std::string_view name, int64_t sequence) const = 0;
  virtual int64_t batch() const = 0;
  virtual bool equal_lengths() const = 0;
  /// Tokens of a sequence that the stream has seen.
  virtual int64_t stream_length(std::string_view name, int64_t sequence) const = 0;
};

}  // namespace fovea
