// The forward pass over a batch: packing, work list, threads.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/attention.h"

#include <algorithm>
#include <limits>

#include "fovea/base/error.h"
#include "fovea/kernels/cpu/attention_gate_pack.h"
#include "fovea/kernels/cpu/isa.h"
#include "fovea/kernels/cpu/isolation.h"

namespace fovea::kernels {

template <>
const AttentionTable<float>& attention_table<float>() {
  static const AttentionTable<float>& chosen = pick_by_isa<const AttentionTable<float>&()>(
      {attention_scalar<float>, FOVEA_AVX2(attention_avx2<float>),
       FOVEA_AVX512(attention_avx512<float>)})();
  return chosen;
}

template <>
const AttentionTable<BFloat16>& attention_table<BFloat16>() {
  static const AttentionTable<BFloat16>& chosen = pick_by_isa<const AttentionTable<BFloat16>&()>(
      {attention_scalar<BFloat16>, FOVEA_AVX2(attention_avx2<BFloat16>),
       FOVEA_AVX512(attention_avx512<BFloat16>), FOVEA_AVX512_BF16(attention_avx512_bf16),
       FOVEA_AMX(attention_amx)})();
  return chosen;
}

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
                   s_.keys, table_.panel, [&](int64_t b) -> const std::vector<int32_t>& {
                     return visits_of(p_.visits, b).key.position;
                   }) {
    for (int64_t b = 0; b < s_.batch; ++b) {
      for (int64_t h = 0; h < s_.heads; ++h) rules_.push_back(head_rule(p_.rule, b, h));
    }
  }

  void run() {
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
  bool finite() const { return !not_finite_; }

 private:
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
      team.each(panels, [&](int64_t n) { pack(heads[n / panels_], n % panels_, scratch.data()); });
      team.each_in_turn(
          count, [&](int64_t n) { attend(heads[items[n].packed], items[n], scratch.data()); });
    });
  }

  void pack(const PackedHead& head, int64_t panel, float* scratch) const {
    const int64_t begin = panel * table_.panel;
    const int64_t rows = std::min(table_.panel, s_.keys - begin);
    table_.pack({p_.k.at(head.b, head.g, begin), p_.k.row, rows}, key_,
                {.columns = head.keys + begin * key_.pitch}, scratch);
    table_.pack({p_.v.at(head.b, head.g, begin), p_.v.row, rows}, value_,
                {.rows = head.values + begin / table_.elements * value_.columns}, scratch);
  }

  void attend(const PackedHead& head, const Item& item, float* scratch) const {
    const Visits& visits = visits_of(p_.visits, head.b);
    const std::span<const TileRange> ranges = visits.by_query.of_block(item.block);
    ForwardBlock<T> block{.key_width = key_,
                          .value_width = value_,
                          .keys = head.keys,
                          .values = head.values,
                          .key_count = s_.keys,
                          .ranges = ranges.data(),
                          .range_count = std::ssize(ranges),
                          .rule = visits.rule,
                          .key_places = columns_of(visits.key),
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
    (block.gate.active() ? table_.gated.forward : table_.forward)(block, scratch);
  }

  void set_row(ForwardBlock<T>& block, int64_t row, const Visits& visits, int64_t b, int64_t h,
               int64_t i) const {
    block.q[row] = p_.q.at(b, h, i);
    block.out[row] = p_.out.at(b, h, i);
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
