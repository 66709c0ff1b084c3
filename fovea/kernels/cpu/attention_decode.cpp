// Decoding over a batch: chunks of keys as work items, then one sum a row.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "fovea/base/error.h"
#include "fovea/kernels/cpu/attention_gate_pack.h"

namespace fovea::kernels {
namespace {

// Keys whose rows of several heads are read one head after the other: few enough that what the
// hardware fetches beside a head's rows is still at hand for its neighbours, which lie between
// them. The order of sums follows from it, so it is the same for all problems.
constexpr int64_t kChunk = 128;

// Chunks of a work item: long enough that a thread hardly notices beginning and end, short enough
// that 4096 keys give work to 8 threads.
constexpr int64_t kItemChunks = 4;

// Chunks of one batch row and of some key heads.
struct ChunkItem {
  int64_t b = 0, chunk_begin = 0, chunk_end = 0, head_begin = 0, head_end = 0;
};

template <class T>
class Decode {
 public:
  explicit Decode(const AttentionDecode<T>& problem)
      : p_(problem),
        s_(problem.sizes),
        table_(attention_table<T>()),
        key_(packed_width(table_, s_.head_dim)),
        value_(packed_width(table_, s_.value_dim)),
        rows_(s_.heads / s_.kv_heads * s_.queries),
        chunks_(std::max<int64_t>((s_.keys + kChunk - 1) / kChunk, 1)),
        part_(decode_part(value_)),
        gate_(gate_rule(p_.rule.gate)) {
    for (int64_t b = 0; b < s_.batch; ++b) {
      for (int64_t h = 0; h < s_.heads; ++h) rules_.push_back(head_rule(p_.rule, b, h));
    }
  }

  void run() {
    const std::vector<ChunkItem> items = make_items();
    parts_ = packed_memory(s_.batch * s_.kv_heads * chunks_ * rows_ * part_);
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

 private:
  const RowVisits& visits(int64_t b, int64_t row) const {
    return p_.rows[b * s_.queries + row % s_.queries];
  }
  float* part(int64_t b, int64_t g, int64_t chunk) const {
    return parts_ + ((b * s_.kv_heads + g) * chunks_ + chunk) * rows_ * part_;
  }

  // Kernels read whole tiles of 64 keys.
  int64_t gate_pitch() const { return chunks_ * kChunk; }

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
                     .begin = chunk * kChunk,
                     .end = std::min((chunk + 1) * kChunk, s_.keys),
                     .values = gates_.data() + row * gate_pitch()});
  }

  // All chunks, also those that nobody sees: their parts are written too. Heads go apart where
  // there are not items enough for all threads.
  std::vector<ChunkItem> make_items() const {
    const int64_t count = s_.batch * ((chunks_ + kItemChunks - 1) / kItemChunks);
    const int64_t heads = count >= 2 * omp_get_max_threads() ? s_.kv_heads : 1;
    std::vector<ChunkItem> items;
    for (int64_t b = 0; b < s_.batch; ++b) {
      for (int64_t chunk = 0; chunk < chunks_; chunk += kItemChunks) {
        for (int64_t g = 0; g < s_.kv_heads; g += heads)
          items.push_back({b, chunk, std::min(chunk + kItemChunks, chunks_), g, g + heads});
      }
    }
    return items;
  }

  void attend(const ChunkItem& item, float* scratch) const {
    for (int64_t chunk = item.chunk_begin; chunk < item.chunk_end; ++chunk) {
      for (int64_t g = item.head_begin; g < item.head_end; ++g) {
        for (int64_t row = 0; row < rows_; row += kDecodeRows)
          attend(item.b, g, chunk, row, std::min(row + kDecodeRows, rows_), scratch);
      }
    }
  }

  // A chunk of one key head for rows [row_begin, row_end) of those that read it (head by head,
  // query by query).
  void attend(int64_t b, int64_t g, int64_t chunk, int64_t row_begin, int64_t row_end,
              float* scratch) const {
    const int64_t begin = chunk * kChunk, end = std::min(begin + kChunk, s_.keys);
    const std::vector<int32_t>* seen_keys = p_.keys_seen.empty() ? nullptr : &p_.keys_seen[b];
    DecodeBlock<T> block{.key_width = key_,
                         .value_width = value_,
                         .k = p_.k.at(b, g),
                         .v = p_.v.at(b, g),
                         .k_row = p_.k.row,
                         .v_row = p_.v.row,
                         .key_begin = end,
                         .key_end = begin,
                         .key_limit = seen_keys != nullptr ? std::ssize(*seen_keys) : s_.keys,
                         .index = seen_keys != nullptr ? seen_keys->data() : nullptr,
                         .plain = is_plain(p_.rule),
                         .gate_form = gate_.form,
                         .part = part(b, g, chunk) + row_begin * part_};
    for (int64_t row = row_begin; row < row_end; ++row) {
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

  void finish(int64_t n) const {
    const int64_t i = n % s_.queries, h = n / s_.queries % s_.heads, b = n / s_.queries / s_.heads;
    const int64_t group = s_.heads / s_.kv_heads;
    table_.finish_decode({.parts = part(b, h / group, 0) + (h % group * s_.queries + i) * part_,
                          .stride = rows_ * part_,
                          .count = chunks_,
                          .value_width = value_,
                          .sink = p_.rule.sink_logit != nullptr
                                      ? p_.rule.sink_logit[h]
                                      : -std::numeric_limits<float>::infinity(),
                          .out = p_.out.at(b, h, i),
                          .lse = p_.lse != nullptr ? p_.lse + n : nullptr});
  }

  const AttentionDecode<T>& p_;
  const AttentionSizes& s_;
  const AttentionTable<T>& table_;
  const PackedWidth key_, value_;
  const int64_t rows_, chunks_, part_;  // rows_: that read one key head
  const GateRule gate_;
  std::vector<float> gates_;  // [batch][queries][gate_pitch()]
  std::vector<HeadRule> rules_;
  float* parts_ = nullptr;  // [batch][kv_heads][chunk][row][part_]
};

}  // namespace

bool prefers_decode(const AttentionSizes& s) {
  return s.kv_heads > 0 && s.heads / s.kv_heads * s.queries <= kDecodeRows;
}

template <class T>
void run(const AttentionDecode<T>& problem) {
  const AttentionSizes& s = problem.sizes;
  check_sizes(s, problem.rule.gate);
  require<ShapeError>(std::ssize(problem.rows) == s.batch * s.queries, "attention kernel",
                      "expected the visits of {} rows; got {}", s.batch * s.queries,
                      problem.rows.size());
  require<UnsupportedError>(problem.rule.dropout == 0.0f, "attention kernel",
                            "decoding has no dropout; got {}", problem.rule.dropout);
  require<ShapeError>(
      problem.keys_seen.empty() || (std::ssize(problem.keys_seen) == s.batch && s.queries == 1),
      "attention kernel",
      "lists of keys are for one query each of {} rows; got {} lists, {} queries", s.batch,
      problem.keys_seen.size(), s.queries);
  for (int64_t b = 0; b < std::ssize(problem.keys_seen); ++b) {
    require<ShapeError>(problem.rows[b].near.end <= std::ssize(problem.keys_seen[b]) &&
                            problem.rows[b].far.end <= std::ssize(problem.keys_seen[b]),
                        "attention kernel", "row {} of the batch has {} keys in its list; got {}",
                        b, problem.keys_seen[b].size(), problem.rows[b].near.end);
  }
  for (const RowVisits& row : problem.rows) {
    for (const KeyRange& range : {row.near, row.far}) {
      require<ShapeError>(range.begin >= range.end || (range.begin >= 0 && range.end <= s.keys),
                          "attention kernel", "rows see keys [0, {}); got [{}, {})", s.keys,
                          range.begin, range.end);
    }
  }
  if (s.batch * s.heads * s.queries == 0) return;
  Decode<T>(problem).run();
}
template void run(const AttentionDecode<float>&);
template void run(const AttentionDecode<BFloat16>&);

}  // namespace fovea::kernels
