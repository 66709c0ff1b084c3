// The forward pass over a batch: packing, work list, threads.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/pointwise/attention.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "fovea/base/error.h"
#include "fovea/kernels/cpu/kernel_levels.h"
#include "fovea/kernels/cpu/pointwise/attention_gate_pack.h"
#include "fovea/kernels/cpu/pointwise/attention_ring.h"
#include "fovea/kernels/cpu/pointwise/few_keys_blocks.h"
#include "fovea/kernels/cpu/pointwise/isolation.h"

namespace fovea::kernels {

template <class T>
const AttentionTable<T>& attention_table() {
  return chosen_kernels<AttentionTable<T>>();
}
template const AttentionTable<float>& attention_table();
template const AttentionTable<BFloat16>& attention_table();

template <class T>
std::string_view attention_isa() {
  return attention_table<T>().isa;
}
template std::string_view attention_isa<float>();
template std::string_view attention_isa<BFloat16>();

std::optional<std::string> why_not_attention_kernels(int64_t head_dim, int64_t value_dim) {
  const auto fits = [](int64_t n) { return n >= 8 && n <= kWidestHead && n % 8 == 0; };
  if (!fits(head_dim)) return "head_dim must be a multiple of 8 from 8 to 256";
  if (!fits(value_dim)) return "value_dim must be a multiple of 8 from 8 to 256";
  return std::nullopt;
}

void check_sizes(const AttentionSizes& s, const PairGate& gate) {
  if (const auto why = why_not_attention_kernels(s.head_dim, s.value_dim))
    fail<UnsupportedError>("attention kernel", "{}; got {} and {}", *why, s.head_dim, s.value_dim);
  require<ShapeError>(s.kv_heads >= 1 && s.heads % s.kv_heads == 0, "attention kernel",
                      "kv_heads must divide heads; got {} and {}", s.kv_heads, s.heads);
  if (gate.form == PairGate::Form::none) return;
  require<ShapeError>(gate.columns >= 1 && gate.columns <= kMostGateColumns, "attention kernel",
                      "a gate has 1 to {} columns; got {}", kMostGateColumns, gate.columns);
}

void check_sizes(const AttentionSizes& s, const PairGate& gate, std::span<const Visits> visits) {
  check_sizes(s, gate);
  require<ShapeError>(visits.size() == 1 || std::ssize(visits) == s.batch, "attention kernel",
                      "expected 1 or {} visits; got {}", s.batch, visits.size());
  for (const Visits& v : visits) {
    require<ShapeError>(v.queries == s.queries && v.keys == s.keys, "attention kernel",
                        "the visits are for {} queries and {} keys; got {} and {}", v.queries,
                        v.keys, s.queries, s.keys);
  }
}

namespace {

constexpr int64_t kMostRing = 4096;  // keys

// Keys and values of one key head, packed.
struct PackedHead {
  int64_t b = 0, g = 0;
  float *keys = nullptr, *values = nullptr;
};

// A block of query rows: queries [begin, end) of heads [head_begin, head_end), which share one
// pass.
struct Item {
  int64_t packed = 0, block = 0, head_begin = 0, head_end = 0;
};

template <class T>
class Forward {
 public:
  Forward(const AttentionForward<T>& problem, const AttentionTable<T>* table)
      : p_(problem),
        s_(problem.sizes),
        table_(table_or(table)),
        key_(packed_width(table_, s_.head_dim)),
        value_(packed_width(table_, s_.value_dim)),
        panels_((s_.keys + table_.panel - 1) / table_.panel),
        key_floats_(panels_ * table_.panel * key_.pitch),
        value_floats_(panels_ * table_.panel / table_.elements * value_.columns),
        gate_(gate_rule(p_.rule.gate)),
        plain_(is_linear(p_.rule, gate_.form)),
        query_gates_(gate_, p_.rule.gate.columns, p_.rule.gate.query, p_.rule.gate.query_batch,
                     s_.batch, s_.queries, s_.queries),
        key_gates_(gate_, p_.rule.gate.columns, p_.rule.gate.key, p_.rule.gate.key_batch, s_.batch,
                   s_.keys, table_.panel,
                   [&](int64_t b) { return visits_of(p_.visits, b).key.position; }) {
    for (int64_t b = 0; b < s_.batch; ++b) {
      for (int64_t h = 0; h < s_.heads; ++h) rules_.push_back(head_rule(p_.rule, b, h));
    }
  }

  void run() {
    if (const RingSize size = ring_size(); size.keys > 0) return run_rings(size);
    run_packed();
    if (p_.few != nullptr) kernels::run(*p_.few);
  }
  bool finite() const { return !not_finite_; }

 private:
  // All keys of as many key heads as fit are packed, then read by all blocks.
  void run_packed() {
    const int64_t pairs = s_.batch * s_.kv_heads, floats = key_floats_ + value_floats_;
    const int64_t blocks = (s_.queries + kQueryBlock - 1) / kQueryBlock;
    const int64_t at_once = heads_together(pairs, floats, blocks);
    float* const packed = packed_memory(at_once * floats);
    std::vector<PackedHead> heads;
    std::vector<Item> items;
    for (int64_t first = 0; first < pairs; first += at_once) {
      heads.clear();
      items.clear();
      for (int64_t n = first; n < std::min(first + at_once, pairs); ++n) {
        float* keys = packed + (n - first) * floats;
        heads.push_back({n / s_.kv_heads, n % s_.kv_heads, keys, keys + key_floats_});
        add_items(std::ssize(heads) - 1, items);
      }
      run_heads(heads, items);
    }
  }

  // The ring that all rows of the batch can use; none where threads would find too few runs of
  // blocks that are longer than the ring.
  RingSize ring_size() const {
    RingSize all;
    for (const Visits& visits : p_.visits) {
      const RingSize one = key_ring(visits, kMostRing);
      if (one.keys == 0) return {};
      all = {std::max(all.kept, one.kept), std::max(all.keys, one.keys)};
    }
    const int64_t threads = omp_get_max_threads();
    const int64_t runs = s_.batch * s_.kv_heads * (s_.queries / all.keys);
    const bool enough = threads == 1 || runs >= 2 * threads;
    return s_.queries >= kQueryBlock && all.keys * 2 <= s_.keys && enough ? all : RingSize{};
  }

  int64_t ring_floats(const RingSize& size) const {
    const int64_t rows = size.kept + size.keys;
    return rows * key_.pitch + rows / table_.elements * value_.columns;
  }

  // Every thread walks through runs of neighbouring blocks of a key head, and packs keys and values
  // into a ring that stays in its cache, where a block reads them first.
  void run_rings(const RingSize& size) {
    const int64_t pairs = s_.batch * s_.kv_heads;
    const int64_t blocks = (s_.queries + kQueryBlock - 1) / kQueryBlock;
    const bool parallel = products(s_) > kParallelProducts;
    const int64_t threads = Team::threads(parallel), floats = ring_floats(size);
    const int64_t least = std::clamp<int64_t>(size.keys / kQueryBlock, 1, blocks);
    const int64_t together =
        threads == 1 ? blocks
                     : std::clamp(blocks * pairs / (kItemsPerThread * threads), least, blocks);
    const int64_t runs = (blocks + together - 1) / together;
    float* const memory = packed_memory(threads * floats);
    if (p_.few != nullptr) {
      check_few_keys(p_.few->sizes);
      few_.emplace(*p_.few);
    }
    Team::run(parallel, [&](Team::Member& team) {
      const FloatBuffer scratch(std::max({table_.forward_scratch(key_, value_),
                                          table_.panel * std::max(key_.pitch, value_.pitch),
                                          few_memory(s_.head_dim, s_.value_dim)}));
      float* const keys = memory + team.index() * floats;
      team.each_in_turn(pairs * runs, [&](int64_t n) {
        const PackedHead head{n / runs / s_.kv_heads, n / runs % s_.kv_heads, keys,
                              keys + (size.kept + size.keys) * key_.pitch};
        const int64_t first = n % runs * together;
        run_ring(head, size, first, std::min(first + together, blocks), scratch.data());
      });
    });
  }

  void run_ring(const PackedHead& head, const RingSize& size, int64_t first, int64_t last,
                float* scratch) const {
    const int64_t query_heads = s_.heads / s_.kv_heads;
    for (int64_t key = 0; key < size.kept; key += table_.panel) pack(head, key, key, scratch);
    int64_t packed = -1;  // keys before it are in the ring
    for (int64_t block = first; block < last; ++block) {
      const TileRanges& ranges = visits_of(p_.visits, head.b).by_query;
      const auto [begin, end] = ring_keys(ranges.of_block(block), size.kept);
      for (packed = std::max(packed, begin); packed < end; packed += table_.panel)
        pack(head, packed, size.kept + (packed & (size.keys - 1)), scratch);
      for (int64_t h = 0; h < query_heads; ++h) {
        attend(head, {0, block, h, h + 1}, scratch, &size, packed);
        if (few_) few_->join(rows_of(head, block, h), scratch);
      }
    }
  }

  RowBlock rows_of(const PackedHead& head, int64_t block, int64_t h) const {
    const int64_t begin = block * kQueryBlock;
    return {.b = head.b,
            .h = head.g * (s_.heads / s_.kv_heads) + h,
            .first = begin,
            .rows = std::min(kQueryBlock, s_.queries - begin)};
  }

  // Long blocks first, so that threads finish together. Few queries: several heads fill one block.
  void add_items(int64_t packed, std::vector<Item>& items) const {
    const int64_t query_heads = s_.heads / s_.kv_heads;
    const int64_t together =
        std::clamp<int64_t>(kQueryBlock / std::max<int64_t>(s_.queries, 1), 1, query_heads);
    const int64_t blocks = (s_.queries + kQueryBlock - 1) / kQueryBlock;
    for (int64_t block = blocks - 1; block >= 0; --block) {
      for (int64_t h = 0; h < query_heads; h += together)
        items.push_back({packed, block, h, std::min(h + together, query_heads)});
    }
  }

  void run_heads(const std::vector<PackedHead>& heads, const std::vector<Item>& items) const {
    const int64_t panels = std::ssize(heads) * panels_, count = std::ssize(items);
    Team::run(products(s_) > kParallelProducts, [&](Team::Member& team) {
      const FloatBuffer scratch(std::max(table_.forward_scratch(key_, value_),
                                         table_.panel * std::max(key_.pitch, value_.pitch)));
      team.each(panels, [&](int64_t n) {
        const int64_t key = n % panels_ * table_.panel;
        pack(heads[n / panels_], key, key, scratch.data());
      });
      team.each_in_turn(
          count, [&](int64_t n) { attend(heads[items[n].packed], items[n], scratch.data()); });
    });
  }

  // The panel of keys from `begin` on to place `to`.
  void pack(const PackedHead& head, int64_t begin, int64_t to, float* scratch) const {
    const int64_t rows = std::min(table_.panel, s_.keys - begin);
    table_.pack({p_.k.at(head.b, head.g, begin), p_.k.row, rows}, key_,
                {.columns = head.keys + to * key_.pitch}, scratch);
    table_.pack({p_.v.at(head.b, head.g, begin), p_.v.row, rows}, value_,
                {.rows = head.values + to / table_.elements * value_.columns}, scratch);
  }

  // With a ring, keys up to `packed` have been read.
  void attend(const PackedHead& head, const Item& item, float* scratch,
              const RingSize* ring = nullptr, int64_t packed = 0) const {
    const Visits& visits = visits_of(p_.visits, head.b);
    const std::span<const TileRange> ranges = visits.by_query.of_block(item.block);
    ForwardBlock<T> block{.key_width = key_,
                          .value_width = value_,
                          .keys = head.keys,
                          .values = head.values,
                          .kept = ring != nullptr ? ring->kept : 0,
                          .wrap = ring != nullptr ? ring->keys - 1 : -1,
                          .key_count = s_.keys,
                          .ranges = ranges.data(),
                          .range_count = std::ssize(ranges),
                          .rule = visits.rule,
                          .key_places = columns_of(visits.key),
                          // several heads in a block are rows that begin anew
                          .ordered = visits.ordered && item.head_end - item.head_begin == 1,
                          .plain = plain_,
                          .gate = gate_,
                          .key_gates = key_gates_.of(head.b),
                          .not_finite = &not_finite_};
    const int64_t query_heads = s_.heads / s_.kv_heads, begin = item.block * kQueryBlock;
    const int64_t end = std::min(begin + kQueryBlock, s_.queries);
    for (int64_t h = item.head_begin; h < item.head_end; ++h) {
      for (int64_t i = begin; i < end; ++i)
        set_row(block, block.rows++, visits, head.b, head.g * query_heads + h, i);
    }
    if (ring != nullptr) prefetch(block, head, item, end, packed);
    (block.gate.active() ? table_.gated.forward : table_.forward)(block, scratch);
  }

  // What this block writes, and what the next one reads first.
  void prefetch(ForwardBlock<T>& block, const PackedHead& head, const Item& item, int64_t row,
                int64_t packed) const {
    constexpr int64_t kElement = sizeof(T);
    const int64_t query_heads = s_.heads / s_.kv_heads, h = head.g * query_heads + item.head_begin;
    const auto add = [&](const T* rows, int64_t stride, int64_t width, int64_t count) {
      if (count > 0)
        block.prefetch[block.prefetch_count++] = {rows, stride * kElement, width * kElement, count};
    };
    add(block.out[0], p_.out.row, s_.value_dim, block.rows);
    if (p_.few != nullptr && p_.few->q.data != p_.q.data)
      add(p_.few->q.at(head.b, h, row - block.rows), p_.few->q.row, s_.head_dim, block.rows);
    if (item.head_end < query_heads)
      return add(p_.q.at(head.b, h + 1, row - block.rows), p_.q.row, s_.head_dim, block.rows);
    add(p_.q.at(head.b, head.g * query_heads, row), p_.q.row, s_.head_dim,
        std::min(kQueryBlock, s_.queries - row));
    const int64_t keys = std::min(kQueryBlock, s_.keys - packed);
    add(p_.k.at(head.b, head.g, packed), p_.k.row, s_.head_dim, keys);
    add(p_.v.at(head.b, head.g, packed), p_.v.row, s_.value_dim, keys);
  }

  void set_row(ForwardBlock<T>& block, int64_t row, const Visits& visits, int64_t b, int64_t h,
               int64_t i) const {
    block.q[row] = p_.q.at(b, h, i);
    block.out[row] = p_.out.at(b, h, i);
    block.rest[row] = p_.out_rest.at_or_null(b, h, i);
    const int64_t n = (b * s_.heads + h) * s_.queries + i;
    block.lse[row] = p_.lse != nullptr ? p_.lse + n : nullptr;
    block.stats[row] = p_.stats != nullptr ? p_.stats + n * kRowStats : nullptr;
    block.position[row] = visits.query.position[i];
    block.document[row] = visits.query.document[i];
    block.pattern_id[row] = visits.query.pattern_id[i];
    block.scale[row] =
        p_.rule.tau != nullptr ? 1.0f / p_.rule.tau[b * s_.queries + i] : p_.rule.scale;
    block.sink[row] = p_.rule.sink_logit != nullptr ? p_.rule.sink_logit[h]
                                                    : -std::numeric_limits<float>::infinity();
    block.index[row] = s_.keys - s_.queries + i;
    block.query_gate[row] = query_gates_.at(b, i);
    block.head[row] = &rules_[b * s_.heads + h];
  }

  const AttentionForward<T>& p_;
  const AttentionSizes& s_;
  const AttentionTable<T>& table_;
  const PackedWidth key_, value_;
  const int64_t panels_, key_floats_, value_floats_;
  const GateRule gate_;
  const bool plain_;
  const GateRows query_gates_;
  const GateColumns key_gates_;
  std::vector<HeadRule> rules_;
  std::optional<FewJoin<T>> few_;
  mutable bool not_finite_ = false;  // some result is not; threads note it
};

}  // namespace

template <class T>
void run(const AttentionForward<T>& problem, const AttentionTable<T>* table) {
  check_sizes(problem.sizes, problem.rule.gate, problem.visits);
  if (problem.sizes.batch * problem.sizes.heads * problem.sizes.queries == 0) return;
  const auto run_once = [table](const AttentionForward<T>& p) {
    Forward<T> forward(p, table);
    forward.run();
    return forward.finite();
  };
  if (!run_once(problem)) ForwardIsolation<AttentionForward, T>(problem).repair(run_once);
}
template void run(const AttentionForward<float>&, const AttentionTable<float>*);
template void run(const AttentionForward<BFloat16>&, const AttentionTable<BFloat16>*);

}  // namespace fovea::kernels
