// The cache of one layer: named streams of rows with append, truncate, fork and save (seam 3 of the
// design).
//
// A mechanism declares which streams it needs and how many rows it keeps. Keys and values are
// always there; a learned prefix temperature adds "temperature" (running sum and count after every
// token, so that truncation is exact); key-query convolutions add "queries" with the (cq-1) +
// (cq'-1) queries before the current one (3.6, M-10), and "tau" with theirs where it is learned.
// Focus keeps "groups" or "members" of every key, and "group_scores" with potentials by chunk;
// routing keeps "routes", the clusters of every key, and "nearness". A long text that is written
// token by token with hard Focus gets a copy of its keys by class (sorted_keys.h).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fovea/attention/attention.h"
#include "fovea/attention/cache/huge_pages.h"
#include "fovea/attention/mechanisms/focal.h"

namespace fovea {

class SortedKeys;  // sorted_keys.h

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
};

/// The streams that `spec` needs.
std::vector<StreamSpec> cache_streams(const AttentionSpec& spec, at::ScalarType dtype);

/// Bytes of HugePages that a cache of these streams takes.
int64_t cache_bytes(const std::vector<StreamSpec>& streams, int64_t batch, int64_t capacity);

/// Rows of a stream in memory, [b, heads, rows, row] (without heads: one); strides in elements, the
/// row of a head is contiguous.
struct CachedRows {
  void* data = nullptr;
  int64_t batch = 0, row = 0, head = 0;
  int64_t rows = 0;
  int64_t first_position = 0;  ///< of row 0
};

class AttentionCache {
 public:
  /// Preallocates `capacity` rows per stream (fewer where a stream keeps fewer), in `memory` if
  /// given: cache_bytes() of it.
  AttentionCache(std::vector<StreamSpec> streams, int64_t batch, int64_t capacity,
                 at::Device device = at::kCPU, HugePages* memory = nullptr);

  /// Appends rows [b, n, row_shape...] to a stream. All streams of a step must receive the same n.
  /// UnsupportedError past capacity.
  void append(const std::string& name, const at::Tensor& rows_bn);
  /// append() of one row a sequence that the caller writes: what rows() gives afterwards, its last
  /// row of any content. UnsupportedError past capacity, or where the stream keeps first rows.
  CachedRows extend(const std::string& name);
  /// Kept rows in order: [b, rows, row_shape...], a view where the stream keeps no first rows.
  at::Tensor rows(const std::string& name) const;
  /// Positions of the kept rows of a stream, int64 [rows].
  at::Tensor positions(const std::string& name) const;
  /// Tokens seen so far (of the stream that has seen fewest).
  int64_t length() const;
  /// Tokens seen by one stream.
  int64_t stream_length(const std::string& name) const;
  int64_t capacity() const;
  /// Forgets tokens >= length. UnsupportedError if rows needed for that were already evicted.
  void truncate(int64_t length);
  /// An independent copy.
  AttentionCache fork() const;
  /// All tensors under "stream.<name>", for saving; load() is its inverse.
  std::map<std::string, at::Tensor> save() const;
  void load(const std::map<std::string, at::Tensor>& tensors);
  int64_t bytes() const;

  /// Whether a stream of that name exists.
  bool has(const std::string& name) const;
  /// The prefix-temperature state after the last token of stream "temperature".
  TemperatureState temperature() const;

 private:
  /// Two buffers: positions [0, keep_first) in `first`, and [tail_begin, seen) from the start of
  /// `tail`, which may be longer.
  struct Stream {
    StreamSpec spec;
    at::Tensor first, tail;
    int64_t seen = 0;
    int64_t tail_begin = 0;
    int64_t last_appended = 0;

    int64_t first_rows() const;
    /// The first tail row that a query of the last append may need.
    int64_t visible_begin() const;
  };
  Stream& stream(const std::string& name);
  const Stream& stream(const std::string& name) const;
  void require_room(const Stream& stream, int64_t rows) const;
  void make_room(Stream& stream, int64_t rows);
  friend AttentionResult cached_attention(const AttentionSpec& spec, AttentionCache& cache,
                                          const at::Tensor& q_bhtd, const at::Tensor& k_bgtd,
                                          const at::Tensor& v_bgte, const AttentionTensors& tensors,
                                          Path path);
  std::vector<Stream> streams_;
  friend class TokenKeys;
  /// Whether one query of hard Focus without a mask shall read sorted keys; counts such queries.
  bool wants_sorted_keys(const FocusSpec& focus);
  /// Them, with all rows of the cache.
  SortedKeys& sorted_keys(int64_t window);
  /// Them for a token that is not in the cache yet, with room for it; null where a scan is better.
  SortedKeys* sorted_for_token(const AttentionSpec& spec);
  std::shared_ptr<SortedKeys> sorted_;  // made again where it is lost
  int64_t single_queries_ = 0, sorting_from_ = 0;
  int64_t batch_ = 0, capacity_ = 0;
  at::Device device_ = at::kCPU;
};

/// tau of the next t tokens of a cached sequence: temperature_rows() with the cache's running
/// state, which it advances.
at::Tensor cached_temperature(const TemperatureSpec& spec, int64_t head_dim,
                              const TemperatureParameters& parameters, const at::Tensor& x_btc,
                              AttentionCache& cache);

/// Attention of the next t tokens with everything in the cache: appends k and v [b,g,t,*], then
/// attends with the rule of `spec`. Equal to the full call's last t rows (contract "decode").
/// path.name = "decode".
AttentionResult cached_attention(const AttentionSpec& spec, AttentionCache& cache,
                                 const at::Tensor& q_bhtd, const at::Tensor& k_bgtd,
                                 const at::Tensor& v_bgte, const AttentionTensors& tensors = {},
                                 Path path = Path::automatic);

}  // namespace fovea
