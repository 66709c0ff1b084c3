// The cache of one layer: named streams of rows that can be appended to, cut, copied and saved. The
// sequences of a batch may have different lengths.
//
// Copies share full pages. A stream that keeps all rows then begins with pages of other caches,
// which nobody writes, and continues in a tail of its own.
//
// Attention over the rows is attention/decode; sorted_copy.h has keys sorted by group.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/attention/cache/huge_pages.h"
#include "fovea/attention/cache/streams.h"

namespace fovea {

/// The rows that a stream keeps of one sequence, in a buffer.
struct KeptRows {
  int64_t begin = 0;           ///< row of the buffer
  int64_t rows = 0;            ///< from there on
  int64_t first_position = 0;  ///< of the first of them
  int64_t first_rows = 0;      ///< before them, in a buffer of their own: positions 0, 1, ...
};

/// Whole pages of one sequence that several caches read.
struct SharedRows {
  at::Tensor rows;             ///< the tail of the cache that wrote them
  int64_t sequence = 0;        ///< of it
  int64_t begin = 0, end = 0;  ///< positions; `begin` stands in row 0
};

/// Rows of a stream in memory, [b, heads, rows, row] (without heads: one); strides in elements, the
/// row of a head is contiguous.
struct CachedRows {
  struct Buffer {
    void* data = nullptr;  ///< row 0
    int64_t batch = 0, row = 0, head = 0;
  };
  void* data = nullptr;  ///< row 0 of the buffer
  int64_t batch = 0, row = 0, head = 0;
  Buffer first;                         ///< the rows that the stream keeps first; null without
  std::span<const KeptRows> sequences;  ///< valid until the cache changes
  /// Shared pages of each sequence, which precede its own rows: its own rows are then rows -begin
  /// and more of its KeptRows. Only from extend_in_pages().
  std::span<const std::vector<SharedRows>> shared = {};
};

class AttentionCache : public CachedStreams {
 public:
  static constexpr int64_t kPage = 128;  ///< rows; a multiple of what kernels read at once

  /// Preallocates `capacity` rows per stream and sequence (fewer where a stream keeps fewer), in
  /// `memory` if given: cache_bytes() of it.
  AttentionCache(std::vector<StreamSpec> streams, int64_t batch, int64_t capacity,
                 at::Device device = at::kCPU, HugePages* memory = nullptr);
  /// One sequence of a cache, as a source of gather().
  struct Source {
    const AttentionCache* cache = nullptr;
    int64_t sequence = 0;
  };
  /// Copies of sequences, in this order, with room for `capacity` tokens; they share full pages.
  /// ConfigError where the caches have other streams.
  static AttentionCache gather(std::span<const Source> sources, int64_t capacity);

  void append(std::string_view name, const at::Tensor& rows_bn) override;
  /// append() of one row a sequence that the caller writes: the rows afterwards, the last one of
  /// each sequence of any content. UnsupportedError past capacity.
  CachedRows extend(std::string_view name);
  /// As extend(), but sequences may begin with shared pages.
  CachedRows extend_in_pages(std::string_view name);
  /// The row [b, row_shape...] of a state stream, in place: the caller advances it by `tokens` of
  /// each sequence; a sequence without tokens has a row of zeros. UnsupportedError past
  /// capacity.
  at::Tensor replace(std::string_view name, int64_t tokens);
  at::Tensor rows(std::string_view name) const override;
  at::Tensor rows(std::string_view name, int64_t sequence) const override;
  /// Positions of the kept rows of a stream, int64 [rows].
  at::Tensor positions(std::string_view name) const;
  at::Tensor positions(std::string_view name, int64_t sequence, at::Device where) const;

  int64_t batch() const override { return batch_; }
  int64_t capacity() const { return capacity_; }
  at::Device device() const { return device_; }
  /// Tokens seen so far by each sequence (of the stream that has seen fewest).
  std::vector<int64_t> lengths() const;
  bool equal_lengths() const override;
  /// The length of the longest sequence.
  int64_t length() const;
  /// Tokens of the longest sequence that the stream has seen.
  int64_t stream_length(std::string_view name) const;
  int64_t stream_length(std::string_view name, int64_t sequence) const override;
  /// Forgets tokens >= length, of every sequence or one length each. UnsupportedError if rows
  /// needed for that were already evicted.
  void truncate(int64_t length);
  void truncate(std::span<const int64_t> lengths);
  /// An independent copy, which shares full pages.
  AttentionCache fork() const;
  /// All tensors under "stream.<name>", for saving; load() is its inverse.
  std::map<std::string, at::Tensor> save() const;
  void load(const std::map<std::string, at::Tensor>& tensors);
  int64_t bytes() const;

  /// Whether a stream of that name exists.
  bool has(std::string_view name) const;
  /// All of them, by index.
  size_t stream_count() const { return streams_.size(); }
  const StreamSpec& stream_spec(size_t i) const { return streams_[i].spec; }

 private:
  /// One sequence of a stream. Two buffers: positions [0, keep_first) in `first`, and [tail_begin,
  /// seen) from the start of `tail`, which may be longer. Where the stream keeps all rows, those
  /// before tail_begin are shared.
  struct Place {
    int64_t seen = 0, tail_begin = 0, last_appended = 0;
    int64_t written = 0;  // the most that were ever seen: other caches may read below

    bool operator==(const Place& other) const {
      return seen == other.seen && tail_begin == other.tail_begin &&
             last_appended == other.last_appended;
    }
    int64_t used() const { return seen > tail_begin ? seen - tail_begin : 0; }
  };
  struct Stream {
    StreamSpec spec;
    at::Tensor first, tail;
    std::vector<Place> places;                    // one a sequence
    std::vector<std::vector<SharedRows>> shared;  // of each sequence, in order
    std::vector<KeptRows> kept;                   // of extend()

    bool equal() const;
    bool keeps_all() const { return !spec.state && spec.keep_last == 0; }
    bool begins_shared() const;
    int64_t first_rows(int64_t b) const;
    /// The first tail row that a query of the last append may need.
    int64_t visible_begin(int64_t b) const;
    /// The first row that stays when a sequence has no more room.
    int64_t kept_begin(int64_t b) const;
  };
  /// Neighbouring sequences of one length.
  struct Sequences {
    int64_t begin = 0, count = 0;
  };
  AttentionCache() = default;
  Stream& stream(std::string_view name);
  const Stream& stream(std::string_view name) const;
  c10::SmallVector<Sequences, 2> runs(const Stream& stream) const;
  at::Tensor rows_of(const Stream& stream, Sequences which) const;
  /// Makes sequences that begin with the full pages of others.
  struct Origin {
    const Stream* stream = nullptr;
    int64_t sequence = 0;
  };
  void share(Stream& to, std::span<const Origin> origins) const;
  /// All kept rows of some sequences in a buffer of their own, with room for `rows`.
  at::Tensor gathered(const Stream& stream, Sequences which, int64_t rows) const;
  /// Copies shared pages into the tail.
  void make_own(Stream& stream) const;
  /// Before rows are written again that other caches may read.
  static void leave_to_others(Stream& stream);
  void require_room(const Stream& stream, int64_t rows) const;
  void make_room(Stream& stream, Sequences which, int64_t rows);
  std::vector<Stream> streams_;
  int64_t batch_ = 0, capacity_ = 0;
  at::Device device_ = at::kCPU;
};

}  // namespace fovea
