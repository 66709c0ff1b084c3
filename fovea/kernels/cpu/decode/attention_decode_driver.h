// Decoding over a batch: chunks of keys as work items, then one sum a row (internal to
// kernels/cpu).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "fovea/kernels/common/decoder.h"
#include "fovea/kernels/cpu/pointwise/attention_gate_pack.h"

namespace fovea::kernels {

// Keys whose rows of several heads are read one head after the other. They are few: lines that the
// hardware fetches beside a head's rows are still at hand for its neighbours, which lie between
// them. The order of sums follows from it, so it is the same for all problems.
constexpr int64_t kDecodeChunk = 128;

// Chunks of a work item at least: 4096 keys give work to 8 threads.
constexpr int64_t kDecodeItemChunks = 4;

/// Chunks of a work item: long, because an item begins with keys that nobody has prefetched, and
/// two for every thread, so that the last ones end together.
inline int64_t decode_item_chunks(int64_t chunks, int64_t threads) {
  return std::max(kDecodeItemChunks, (chunks + 2 * threads - 1) / (2 * threads));
}

// Chunks of one batch row and of some key heads.
struct DecodeItem {
  int64_t b = 0, chunk_begin = 0, chunk_end = 0, head_begin = 0, head_end = 0;
};

template <class T>
class Decode {
 public:
  /// Keeps a reference.
  explicit Decode(const AttentionDecode<T>& problem, const AttentionTable<T>* table = nullptr)
      : p_(problem),
        s_(problem.sizes),
        table_(table_or(table)),
        key_(packed_width(table_, s_.head_dim)),
        value_(packed_width(table_, s_.value_dim)),
        rows_(s_.heads / s_.kv_heads * s_.queries),
        part_(row_state(value_)),
        gate_(gate_rule(p_.rule.gate)) {
    for (int64_t b = 0; b < s_.batch; ++b) {
      for (int64_t h = 0; h < s_.heads; ++h) rules_.push_back(head_rule(p_.rule, b, h));
    }
  }

  /// The whole problem, on all threads.
  void run() {
    count_chunks();
    const std::vector<DecodeItem> items = make_items();
    write_parts_to(packed_memory(part_floats()));
    const int64_t count = std::ssize(items), rows = s_.batch * s_.heads * s_.queries;
    if (gate_.active())
      gates_.assign(static_cast<size_t>(s_.batch * s_.queries * gate_pitch()), 0.0f);
    Team::run(products(s_) > kParallelProducts, [&](Team::Member& team) {
      const FloatBuffer scratch(table_.decode_scratch(key_));
      if (gate_.active())
        team.each(s_.batch * s_.queries * chunks_, [&](int64_t n) { find_gates(n); });
      team.each_in_turn(count, [&](int64_t n) { attend(items[n], scratch.data()); });
      team.each(rows, [&](int64_t n) { finish(n); });
    });
  }

  /// For callers with threads of their own, in this order: the chunks, memory, all slices in any
  /// order, then all rows in any order. Without a gate.
  int64_t part_floats() const { return s_.batch * s_.kv_heads * chunks_ * rows_ * part_; }
  int64_t scratch_floats() const { return table_.decode_scratch(key_); }
  void write_parts_to(float* memory) { parts_ = memory; }
  /// Keys and values of each row of the batch, instead of the problem's k and v.
  void read_from(std::span<const SequenceCache<T>> caches) { caches_ = caches; }
  /// After the problem's keys or visits changed; at most as many chunks as the memory is for.
  void count_chunks() {
    chunks_ = std::max<int64_t>((s_.keys + kDecodeChunk - 1) / kDecodeChunk, 1);
    ends_.assign(static_cast<size_t>(s_.batch), 0);
    for (int64_t n = 0; n < s_.batch * s_.queries; ++n) {
      int64_t& end = ends_[n / s_.queries];
      for (const KeyRange& range : {p_.rows[n].near, p_.rows[n].far})
        if (range.begin < range.end) end = std::max(end, range.end);
    }
  }
  /// Slice n of `slices`: neighbouring chunks, as many keys as in every other slice.
  void attend_slice(int64_t n, int64_t slices, float* scratch) const {
    DecodeItem piece{.head_end = -1};  // heads of a chunk side by side; none yet
    for_slice(n, slices, [&](int64_t b, int64_t chunk, int64_t g) {
      if (b == piece.b && chunk == piece.chunk_begin && g == piece.head_end) {
        ++piece.head_end;
        return;
      }
      attend(piece, scratch);
      piece = {b, chunk, chunk + 1, g, g + 1};
    });
    attend(piece, scratch);
  }
  /// Fetches the beginning of a slice before its use.
  void prefetch_slice(int64_t n, int64_t slices) const {
    int64_t remaining = table_.decode_fetched;
    for_slice(n, slices, [&](int64_t b, int64_t chunk, int64_t g) {
      const int64_t begin = chunk * kDecodeChunk, end = std::min(begin + kDecodeChunk, ends_[b]);
      if (remaining <= 0) return;
      const Run run = run_of(b, g, begin);
      for (int64_t j = begin; j < end; ++j) {
        for (int64_t c = 0; c < s_.head_dim; c += kLine) {
          __builtin_prefetch(run.k + j * run.k_row + c, 0, 2);
          __builtin_prefetch(run.v + j * run.v_row + c, 0, 2);
        }
      }
      remaining -= (end - begin) * 2 * s_.head_dim * static_cast<int64_t>(sizeof(T));
    });
  }
  /// Row (b, head, query) of out and lse.
  void finish(int64_t n) const {
    const int64_t i = n % s_.queries, h = n / s_.queries % s_.heads, b = n / s_.queries / s_.heads;
    const int64_t query_heads = s_.heads / s_.kv_heads;
    table_.finish_decode(
        {.parts = part(b, h / query_heads, 0) + (h % query_heads * s_.queries + i) * part_,
         .stride = rows_ * part_,
         .count = chunks_of(b),
         .value_width = value_,
         .sink = p_.rule.sink_logit != nullptr ? p_.rule.sink_logit[h]
                                               : -std::numeric_limits<float>::infinity(),
         .out = p_.out.at(b, h, i),
         .lse = p_.lse != nullptr ? p_.lse + n : nullptr});
  }

 private:
  static constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));

  // Pieces whose middle lies in the n-th of `slices` equal parts of all keys of all heads.
  template <class F>
  void for_slice(int64_t n, int64_t slices, const F& work) const {
    int64_t total = 0, before = 0;
    for (const int64_t end : ends_) total += end * s_.kv_heads;
    for (int64_t b = 0; b < s_.batch; ++b) {
      for (int64_t chunk = 0; chunk < chunks_of(b); ++chunk) {
        const int64_t keys = std::min(kDecodeChunk, ends_[b] - chunk * kDecodeChunk);
        for (int64_t g = 0; g < s_.kv_heads; ++g, before += keys)
          if ((2 * before + keys) * slices / (2 * total) == n) work(b, chunk, g);
      }
    }
  }

  /// Chunks with keys that a row of the batch sees.
  int64_t chunks_of(int64_t b) const { return (ends_[b] + kDecodeChunk - 1) / kDecodeChunk; }
  // Where keys and values of a chunk stand: key n at row n, up to `end`.
  struct Run {
    const T *k, *v;
    int64_t k_row, v_row, k_head, v_head, end;
  };
  Run run_of(int64_t b, int64_t g, int64_t chunk_begin) const {
    const int64_t end = ends_[b], first = p_.first_rows.empty() ? 0 : p_.first_rows[b];
    if (caches_.empty())
      return {p_.k.at(b, g, first),
              p_.v.at(b, g, first),
              p_.k.row,
              p_.v.row,
              p_.k.head,
              p_.v.head,
              end};
    static_assert(kSharedKeys % kDecodeChunk == 0);
    const auto run = [&](const HeadRows<T>& k, const HeadRows<T>& v, int64_t row, int64_t last) {
      return Run{k.at(0, g, row), v.at(0, g, row), k.row, v.row, k.head, v.head, last};
    };
    const SequenceCache<T>& cache = caches_[b];
    for (const SharedRun<T>& shared : cache.shared)
      if (!is_listed() && chunk_begin < shared.end)
        return run(shared.keys, shared.values, 0, std::min(shared.end, end));
    return run(cache.keys, cache.values, first, end);
  }
  bool is_listed() const { return p_.keys_seen.rows() > 0; }

  // Where the listed keys of a chunk lie that has shared keys, from k and v of `block`.
  struct Offsets {
    std::array<int64_t, kDecodeChunk + kDecodeAhead> k, v;
  };
  void place_listed(int64_t b, int64_t g, int64_t begin, Offsets& offsets,
                    DecodeBlock<T>& block) const {
    if (block.index == nullptr || caches_.empty() || caches_[b].shared.empty()) return;
    const std::span<const SharedRun<T>> shared = caches_[b].shared;
    size_t n = 0;
    const int64_t end = std::min(begin + std::ssize(offsets.k), block.key_limit);
    block.key_limit = end;
    for (int64_t j = begin; j < end; ++j) {
      const int64_t row = block.index[j], at = j - begin;
      while (n < shared.size() && row >= shared[n].end) ++n;
      const bool own = n == shared.size();
      offsets.k[at] = own ? row * block.k_row : shared[n].keys.at(0, g, row) - block.k;
      offsets.v[at] = own ? row * block.v_row : shared[n].values.at(0, g, row) - block.v;
    }
    block.k_offsets = offsets.k.data();
    block.v_offsets = offsets.v.data();
    block.offsets_begin = begin;
  }

  const RowVisits& visits(int64_t b, int64_t row) const {
    return p_.rows[b * s_.queries + row % s_.queries];
  }
  float* part(int64_t b, int64_t g, int64_t chunk) const {
    return parts_ + ((b * s_.kv_heads + g) * chunks_ + chunk) * rows_ * part_;
  }

  // Kernels read whole tiles of 64 keys.
  int64_t gate_pitch() const { return chunks_ * kDecodeChunk; }

  // The gate of one query and the keys of one chunk: one for all heads.
  void find_gates(int64_t n) {
    const int64_t chunk = n % chunks_, row = n / chunks_, b = row / s_.queries;
    const PairGate& gate = p_.rule.gate;
    table_.gate_row({.rule = gate_,
                     .columns = gate.columns,
                     .query = gate.query + b * gate.query_batch + row % s_.queries * gate.columns,
                     .keys = gate.key + b * gate.key_batch,
                     .near = p_.rows[row].near,
                     .far = p_.rows[row].far,
                     .position = p_.rows[row].position,
                     .begin = chunk * kDecodeChunk,
                     .end = std::min((chunk + 1) * kDecodeChunk, s_.keys),
                     .values = gates_.data() + row * gate_pitch()});
  }

  // All chunks up to the last key that is seen: their parts are written too where nobody sees them.
  // Heads go apart where there are not items enough for all threads.
  std::vector<DecodeItem> make_items() const {
    const int64_t threads = omp_get_max_threads();
    const int64_t length = decode_item_chunks(chunks_, threads);
    int64_t count = 0;
    for (int64_t b = 0; b < s_.batch; ++b) count += (chunks_of(b) + length - 1) / length;
    const int64_t heads = count >= 2 * threads ? s_.kv_heads : 1;
    std::vector<DecodeItem> items;
    for (int64_t b = 0; b < s_.batch; ++b) {
      const int64_t chunks = chunks_of(b);
      for (int64_t chunk = 0; chunk < chunks; chunk += length) {
        for (int64_t g = 0; g < s_.kv_heads; g += heads)
          items.push_back({b, chunk, std::min(chunk + length, chunks), g, g + heads});
      }
    }
    return items;
  }

  void attend(const DecodeItem& item, float* scratch) const {
    for (int64_t chunk = item.chunk_begin; chunk < item.chunk_end; ++chunk) {
      for (int64_t g = item.head_begin, count = 0; g < item.head_end; g += count) {
        count = heads_together(item.b, chunk, g, item.head_end - g);
        for (int64_t row = 0; row < rows_; row += kDecodeRows)
          attend({.b = item.b, .chunk = chunk, .head = g, .heads = count, .row = row}, scratch);
      }
    }
  }

  // Key heads of the `most` from g on that lie side by side, and are read so.
  int64_t heads_together(int64_t b, int64_t chunk, int64_t g, int64_t most) const {
    const bool several_buffers = is_listed() && !caches_.empty() && !caches_[b].shared.empty();
    const Run run = run_of(b, g, chunk * kDecodeChunk);
    if (several_buffers || run.k_head != s_.head_dim || run.v_head != s_.value_dim) return 1;
    return std::max<int64_t>(std::min({most, table_.decode_heads, kDecodeRows / rows_}), 1);
  }

  // A chunk of `heads` key heads, for the rows that read them (head by head, query by query): those
  // from `row` on, at most kDecodeRows.
  struct Piece {
    int64_t b, chunk, head, heads, row;
  };
  void attend(const Piece& piece, float* scratch) const {
    const int64_t b = piece.b, begin = piece.chunk * kDecodeChunk,
                  end = std::min(begin + kDecodeChunk, s_.keys);
    const bool listed = is_listed();
    const auto list = listed ? p_.keys_seen.of(b) : std::span<const int32_t>();
    const Run run = run_of(b, piece.head, begin);
    DecodeBlock<T> block{.key_width = key_,
                         .value_width = value_,
                         .k = run.k,
                         .v = run.v,
                         .k_row = run.k_row,
                         .v_row = run.v_row,
                         .k_head = run.k_head,
                         .v_head = run.v_head,
                         .key_begin = end,
                         .key_end = begin,
                         .key_limit = listed ? std::ssize(list) : run.end,
                         .index = listed ? list.data() : nullptr,
                         .plain = is_plain(p_.rule, gate_.form),
                         .heads = piece.heads,
                         .gate_form = gate_.form};
    Offsets offsets;  // not written where they have no use
    place_listed(b, piece.head, begin, offsets, block);
    const int64_t row_end = std::min(piece.row + kDecodeRows, rows_);
    for (int64_t g = piece.head; g < piece.head + piece.heads; ++g) {
      float* const parts = part(b, g, piece.chunk);
      for (int64_t row = piece.row; row < row_end; ++row) {
        const int64_t h = g * (s_.heads / s_.kv_heads) + row / s_.queries, i = row % s_.queries;
        const RowVisits& seen = visits(b, row);
        const int64_t n = block.rows++;
        block.q[n] = p_.q.at(b, h, i);
        block.position[n] = static_cast<int32_t>(seen.position);
        block.scale[n] =
            p_.rule.tau != nullptr ? 1.0f / p_.rule.tau[b * s_.queries + i] : p_.rule.scale;
        block.gate[n] =
            gate_.active() ? gates_.data() + (b * s_.queries + i) * gate_pitch() : nullptr;
        block.head[n] = &rules_[b * s_.heads + h];
        block.near[n] = cut(seen.near, begin, end, block);
        block.far[n] = cut(seen.far, begin, end, block);
        block.part[n] = parts + row * part_;
      }
    }
    table_.decode(block, scratch);
  }

  // The range inside a chunk; the block's own range grows to hold it.
  static KeyRange cut(KeyRange range, int64_t begin, int64_t end, DecodeBlock<T>& block) {
    range.begin = std::max(range.begin, begin);
    range.end = std::min(range.end, end);
    if (range.begin >= range.end) return {.begin = 0, .end = 0, .shift = range.shift};
    block.key_begin = std::min(block.key_begin, range.begin);
    block.key_end = std::max(block.key_end, range.end);
    return range;
  }

  const AttentionDecode<T>& p_;
  std::span<const SequenceCache<T>> caches_;
  const AttentionSizes& s_;
  const AttentionTable<T>& table_;
  const PackedWidth key_, value_;
  const int64_t rows_, part_;  // rows_: that read one key head
  int64_t chunks_ = 0;         // of the row of the batch that has the most
  std::vector<int64_t> ends_;  // of the batch: behind the last key that is seen
  const GateRule gate_;
  std::vector<float> gates_;  // [batch][queries][gate_pitch()]
  std::vector<HeadRule> rules_;
  float* parts_ = nullptr;  // [batch][kv_heads][chunk][row][part_]
};

}  // namespace fovea::kernels
