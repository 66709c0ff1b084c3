// The backward pass over a batch: packing, partitions, threads.
//
// Work item = (batch row, key head, partition p of R): key blocks p, p + R, ... of every head that
// reads the key head. Round robin balances the causal triangle. dK and dV are private to a key
// block; every partition has dQ sums of its own, added in order afterwards. R depends on the number
// of keys alone, so results do not depend on threads or batch.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>

#include "fovea/kernels/cpu/pointwise/attention_gate_pack.h"
#include "fovea/kernels/cpu/pointwise/attention_ring_gradient.h"
#include "fovea/kernels/cpu/pointwise/few_keys.h"
#include "fovea/kernels/cpu/pointwise/isolation.h"
#include "fovea/kernels/cpu/pointwise/row_turns.h"

namespace fovea::kernels {
namespace {

// Partitions give work to 8 threads a key head at most; one costs a copy of dQ.
int64_t partitions(int64_t keys) { return std::clamp<int64_t>(keys / 512, 1, 8); }

// Rows of queries prepared by one task.
constexpr int64_t kQueryTask = 256;

// One (batch row, key head) with the packed operands of all its query heads.
struct Unit {
  int64_t b = 0, g = 0;
  float *k_natural = nullptr, *k_rows = nullptr, *v_natural = nullptr;
  std::vector<BackwardHead> heads;
  std::vector<RowNumbers> numbers;  // the writable sides of `heads`
  std::vector<float*> dq, dgate;    // likewise
  float* dgate_keys = nullptr;      // [padded keys][pitch]
  std::vector<double> dbias;        // [partition][head][bias_count]
};

template <class T>
class Backward {
 public:
  Backward(const AttentionBackward<T>& problem, const AttentionTable<T>* table)
      : p_(problem),
        s_(problem.sizes),
        table_(table_or(table)),
        key_(packed_width(table_, s_.head_dim)),
        value_(packed_width(table_, s_.value_dim)),
        query_heads_(s_.heads / s_.kv_heads),
        keys_(round_up(s_.keys, kVisitTile)),
        queries_(round_up(s_.queries, kVisitTile)),
        parts_(partitions(s_.keys)),
        dq_columns_(query_columns(key_, p_.dtau != nullptr)),
        turns_(problem),
        bias_(p_.dbias != nullptr ? p_.rule.bias_count : 0),
        gate_(gate_rule(p_.rule.gate)),
        key_gates_(gate_, p_.rule.gate.columns, p_.rule.gate.key, p_.rule.gate.key_batch, s_.batch,
                   s_.keys, round_up(s_.keys, kKeyBlock)),
        query_gates_(gate_, p_.rule.gate.columns, p_.rule.gate.query, p_.rule.gate.query_batch,
                     s_.batch, s_.queries, table_.panel,
                     [&](int64_t b) { return visits_of(p_.visits, b).query.position; }) {}

  void run() {
    const int64_t pairs = s_.batch * s_.kv_heads, floats = unit_floats();
    const int64_t at_once = heads_together(pairs, floats, parts_);
    float* const buffer = packed_memory(at_once * floats);
    for (int64_t first = 0; first < pairs; first += at_once) {
      std::vector<Unit> units;
      for (int64_t n = first; n < std::min(first + at_once, pairs); ++n)
        units.push_back(make_unit(n, buffer + (n - first) * floats));
      run_units(units);
    }
    if (p_.few != nullptr) kernels::run(turns_.few(*p_.few));
    turns_.write_gradients();
  }
  bool finite() const { return !not_finite_; }

 private:
  int64_t rows_floats(int64_t rows, const PackedWidth& w) const {
    return rows / table_.elements * w.columns;
  }
  int64_t head_floats() const {
    return queries_ * (key_.pitch + value_.pitch + 3 + parts_ * (dq_columns_ + gate_.pitch)) +
           rows_floats(queries_, key_) + rows_floats(queries_, value_);
  }
  int64_t unit_floats() const {
    return round_up(keys_ * (key_.pitch + value_.pitch + gate_.pitch) + rows_floats(keys_, key_) +
                        query_heads_ * head_floats(),
                    16);
  }

  Unit make_unit(int64_t n, float* at) const {
    Unit unit{.b = n / s_.kv_heads, .g = n % s_.kv_heads};
    const auto allocate = [&at](int64_t floats) { return std::exchange(at, at + floats); };
    unit.k_natural = allocate(keys_ * key_.pitch);
    unit.v_natural = allocate(keys_ * value_.pitch);
    unit.k_rows = allocate(rows_floats(keys_, key_));
    unit.dgate_keys = allocate(keys_ * gate_.pitch);
    unit.dbias.assign(static_cast<size_t>(parts_ * query_heads_ * bias_), 0.0);
    for (int64_t h = 0; h < query_heads_; ++h) {
      BackwardHead head;
      head.q_columns = allocate(queries_ * key_.pitch);
      head.dout_columns = allocate(queries_ * value_.pitch);
      head.q_rows = allocate(rows_floats(queries_, key_));
      head.dout_rows = allocate(rows_floats(queries_, value_));
      unit.dq.push_back(allocate(parts_ * queries_ * dq_columns_));
      unit.dgate.push_back(allocate(parts_ * queries_ * gate_.pitch));
      unit.numbers.push_back({allocate(queries_), allocate(queries_), allocate(queries_)});
      head.lse2 = unit.numbers.back().lse2;
      head.delta = unit.numbers.back().delta;
      head.scale = unit.numbers.back().scale;
      head.rule = head_rule(p_.rule, unit.b, unit.g * query_heads_ + h);
      unit.heads.push_back(head);
    }
    return unit;
  }

  void run_units(std::vector<Unit>& units) const {
    const int64_t count = std::ssize(units), key_panels = keys_ / table_.panel;
    const int64_t tasks = (queries_ + kQueryTask - 1) / kQueryTask * query_heads_;
    Team::run(products(s_) > kParallelProducts, [&](Team::Member& team) {
      const FloatBuffer scratch(std::max(table_.backward_scratch(key_, value_, gate_),
                                         table_.panel * std::max(key_.pitch, value_.pitch)));
      float* const floats = scratch.data();
      team.each(
          count * key_panels,
          [&](int64_t n) { pack_keys(units[n / key_panels], n % key_panels, floats); }, Meet::no);
      team.each(count * tasks, [&](int64_t n) {
        prepare_queries(units[n / tasks], n % tasks / query_heads_, n % query_heads_, floats);
      });
      team.each_in_turn(count * parts_,
                        [&](int64_t n) { run_partition(units[n / parts_], n % parts_, floats); });
      team.each(count * tasks, [&](int64_t n) {
        finish_queries(units[n / tasks], n % tasks / query_heads_, n % query_heads_);
      });
      team.each(count * query_heads_,
                [&](int64_t n) { finish_head(units[n / query_heads_], n % query_heads_); });
      if (p_.dgate_key != nullptr) team.each(count, [&](int64_t n) { finish_key_gates(units[n]); });
    });
  }

  void pack_keys(const Unit& unit, int64_t panel, float* scratch) const {
    const int64_t begin = panel * table_.panel;
    const int64_t rows = std::clamp<int64_t>(s_.keys - begin, 0, table_.panel);
    table_.pack({p_.k.at(unit.b, unit.g, begin), p_.k.row, rows}, key_,
                {.natural = unit.k_natural + begin * key_.pitch,
                 .rows = unit.k_rows + rows_floats(begin, key_)},
                scratch);
    table_.pack({p_.v.at(unit.b, unit.g, begin), p_.v.row, rows}, value_,
                {.natural = unit.v_natural + begin * value_.pitch}, scratch);
  }

  // Packs queries and output gradients of one task and clears their dQ sums.
  void prepare_queries(const Unit& unit, int64_t task, int64_t h, float* scratch) const {
    const BackwardHead& head = unit.heads[h];
    const int64_t global = unit.g * query_heads_ + h,
                  end = std::min((task + 1) * kQueryTask, queries_);
    for (int64_t begin = task * kQueryTask; begin < end; begin += table_.panel) {
      const int64_t rows = std::clamp<int64_t>(s_.queries - begin, 0, table_.panel);
      // make_unit() cut these from writable memory.
      table_.pack({p_.q.at(unit.b, global, begin), p_.q.row, rows}, key_,
                  {.columns = const_cast<float*>(head.q_columns) + begin * key_.pitch,
                   .rows = const_cast<float*>(head.q_rows) + rows_floats(begin, key_)},
                  scratch);
      table_.pack({p_.dout.at(unit.b, global, begin), p_.dout.row, rows}, value_,
                  {.columns = const_cast<float*>(head.dout_columns) + begin * value_.pitch,
                   .rows = const_cast<float*>(head.dout_rows) + rows_floats(begin, value_)},
                  scratch);
    }
    const int64_t begin = task * kQueryTask;
    number_queries(table_, p_, unit.b, global, begin, end, unit.numbers[h]);
    for (int64_t part = 0; part < parts_; ++part) {
      float* dq = unit.dq[h] + (part * queries_ + begin) * dq_columns_;
      std::fill(dq, dq + (end - begin) * dq_columns_, 0.0f);
      float* dgate = unit.dgate[h] + (part * queries_ + begin) * gate_.pitch;
      std::fill(dgate, dgate + (end - begin) * gate_.pitch, 0.0f);
    }
  }

  void run_partition(Unit& unit, int64_t part, float* scratch) const {
    const Visits& visits = visits_of(p_.visits, unit.b);
    std::vector<BackwardHead> heads = unit.heads;
    for (int64_t h = 0; h < query_heads_; ++h) {
      heads[h].dq = unit.dq[h] + part * queries_ * dq_columns_;
      heads[h].dgate = unit.dgate[h] + part * queries_ * gate_.pitch;
      heads[h].dbias = bias_ > 0 ? unit.dbias.data() + (part * query_heads_ + h) * bias_ : nullptr;
    }
    const auto pass = gate_.active() ? table_.gated.backward : table_.backward;
    for (int64_t block = part; block < visits.by_key.blocks(); block += parts_) {
      const std::span<const TileRange> ranges = visits.by_key.of_block(block);
      pass({.key_width = key_,
            .value_width = value_,
            .dq_columns = dq_columns_,
            .key_begin = block * kKeyBlock,
            .key_count = s_.keys,
            .first_index = s_.keys - s_.queries,
            .k_natural = unit.k_natural,
            .k_rows = unit.k_rows,
            .v_natural = unit.v_natural,
            .ranges = ranges.data(),
            .range_count = std::ssize(ranges),
            .rule = visits.rule,
            .query_places = columns_of(visits.query),
            .key_places = columns_of(visits.key),
            .ordered = visits.ordered,
            .plain = is_plain(p_.rule, gate_.form),
            .gate = gate_,
            .query_gates = query_gates_.of(unit.b),
            .key_gates = key_gates_.at(unit.b),
            .heads = heads.data(),
            .head_count = query_heads_,
            .dk = p_.dk.at(unit.b, unit.g),
            .dv = p_.dv.at(unit.b, unit.g),
            .dk_row = p_.dk.row,
            .dv_row = p_.dv.row,
            .dgate = unit.dgate_keys,
            .not_finite = &not_finite_},
           scratch);
    }
  }

  void finish_queries(const Unit& unit, int64_t task, int64_t h) const {
    const int64_t global = unit.g * query_heads_ + h, begin = task * kQueryTask;
    const int64_t rows = std::min(begin + kQueryTask, s_.queries) - begin;
    if (p_.dgate_query != nullptr) finish_query_gates(unit, begin, begin + rows, h);
    table_.query_gradient({.parts = unit.dq[h] + begin * dq_columns_,
                           .part_size = queries_ * dq_columns_,
                           .part_count = parts_,
                           .rows = rows,
                           .width = s_.head_dim,
                           .columns = dq_columns_,
                           .dq = p_.dq.at(unit.b, global, begin),
                           .dq_row = p_.dq.row,
                           .turns = turns_.at(unit.b, global, begin),
                           .turn = key_.columns,
                           .not_finite = &not_finite_});
  }

  // The query factors' gradient of some rows, summed over the partitions in their order.
  void finish_query_gates(const Unit& unit, int64_t begin, int64_t end, int64_t h) const {
    const int64_t columns = p_.rule.gate.columns, panel = table_.panel;
    float* to = p_.dgate_query +
                ((unit.b * s_.heads + unit.g * query_heads_ + h) * s_.queries + begin) * columns;
    for (int64_t i = begin; i < end; ++i, to += columns) {
      for (int64_t c = 0; c < columns; ++c) {
        const float* from = unit.dgate[h] + i / panel * panel * gate_.pitch + c * panel + i % panel;
        float total = 0.0f;
        for (int64_t part = 0; part < parts_; ++part) total += from[part * queries_ * gate_.pitch];
        to[c] = total;
      }
    }
  }

  void finish_key_gates(const Unit& unit) const {
    const int64_t columns = p_.rule.gate.columns;
    float* to = p_.dgate_key + (unit.b * s_.kv_heads + unit.g) * s_.keys * columns;
    for (int64_t j = 0; j < s_.keys; ++j) {
      const float* from = unit.dgate_keys + j * gate_.pitch;
      std::copy(from, from + columns, to + j * columns);
    }
  }

  // Sums over rows: the sink and the bias table.
  void finish_head(const Unit& unit, int64_t h) const {
    const int64_t global = unit.g * query_heads_ + h, at = unit.b * s_.heads + global;
    sink_gradient(p_, unit.b, global, unit.numbers[h].delta);
    for (int64_t n = 0; n < bias_; ++n) {
      double total = 0.0;
      for (int64_t part = 0; part < parts_; ++part)
        total += unit.dbias[(part * query_heads_ + h) * bias_ + n];
      p_.dbias[at * bias_ + n] = static_cast<float>(total);
    }
  }

  const AttentionBackward<T>& p_;
  const AttentionSizes& s_;
  const AttentionTable<T>& table_;
  const PackedWidth key_, value_;
  const int64_t query_heads_, keys_, queries_, parts_, dq_columns_;
  mutable RowTurns<AttentionBackward<T>> turns_;
  const int64_t bias_;
  const GateRule gate_;
  const GateRows key_gates_;
  const GateColumns query_gates_;
  mutable bool not_finite_ = false;  // some result is not; threads note it
};

constexpr int64_t kMostRing = 4096;  // rows

// The rings of all visits; none where one of them has none, or sums over rows are asked for.
template <class T>
std::vector<RowRing> rings_of(const AttentionBackward<T>& p) {
  std::vector<RowRing> rings;
  if (p.dbias != nullptr || p.rule.gate.form != PairGate::Form::none) return rings;
  for (const Visits& visits : p.visits) {
    rings.push_back(row_ring(visits, kMostRing));
    if (rings.back().partitions.empty() || 2 * rings.back().rows > p.sizes.queries) return {};
  }
  return rings;
}

}  // namespace

template <class T>
void run(const AttentionBackward<T>& problem, const AttentionTable<T>* table) {
  check_sizes(problem.sizes, problem.rule.gate, problem.visits);
  if (problem.sizes.batch * problem.sizes.heads == 0) return;
  const auto run_once = [table](const AttentionBackward<T>& p) {
    const auto run_with = [](auto backward) {
      backward.run();
      return backward.finite();
    };
    const std::vector<RowRing> rings = rings_of(p);
    return rings.empty() ? run_with(Backward<T>(p, table))
                         : run_with(RingBackward<T>(p, table, rings));
  };
  if (run_once(problem)) return;
  const AttentionForward<T> who{.sizes = problem.sizes, .visits = problem.visits};
  BackwardIsolation<AttentionBackward, AttentionForward, T>(problem, who)
      .repair(run_once, [table](const AttentionForward<T>& p) { run(p, table); });
}
template void run(const AttentionBackward<float>&, const AttentionTable<float>*);
template void run(const AttentionBackward<BFloat16>&, const AttentionTable<BFloat16>*);

}  // namespace fovea::kernels
