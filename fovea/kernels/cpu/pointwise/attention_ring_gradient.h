// The backward pass where every block of keys reaches few rows, as with a window or short documents
// (internal to kernels/cpu).
//
// A partition is a run of neighbouring key blocks. One thread walks through it and packs queries
// and output gradients just before they are read, into rings that stay in its cache, beside their
// sums of dQ. A row is written as soon as no later block reaches it; of a row that two partitions
// reach, both sums are kept until the end. Partitions depend on the keys and the mask alone, so
// results do not depend on threads or batch.
//
// Sinks are seen by all rows: rows that block 0 does not reach otherwise meet them when they are
// packed. Every partition has sums of dK and dV of its own for them.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "fovea/kernels/cpu/arena.h"
#include "fovea/kernels/cpu/pointwise/attention_driver.h"
#include "fovea/kernels/cpu/pointwise/attention_ring.h"
#include "fovea/kernels/cpu/pointwise/few_keys_blocks.h"
#include "fovea/kernels/cpu/pointwise/row_turns.h"

namespace fovea::kernels {

template <class T>
class RingBackward {
 public:
  /// `rings`, one or one for each row of the batch, hold partitions. Keeps references.
  RingBackward(const AttentionBackward<T>& problem, const AttentionTable<T>* table,
               const std::vector<RowRing>& rings)
      : p_(problem),
        s_(problem.sizes),
        table_(table_or(table)),
        key_(packed_width(table_, s_.head_dim)),
        value_(packed_width(table_, s_.value_dim)),
        query_heads_(s_.heads / s_.kv_heads),
        queries_(round_up(s_.queries, kVisitTile)),
        dq_columns_(query_columns(key_, p_.dtau != nullptr)),
        turns_(problem),
        rings_(rings) {
    for (const RowRing& ring : rings) {
      rows_ = std::max(rows_, ring.rows);
      kept_ = std::max(kept_, ring.kept);
      parts_ = std::max<int64_t>(parts_, std::ssize(ring.partitions));
      for (size_t n = 1; n < ring.partitions.size(); ++n)
        shared_ = std::max(shared_, ring.shared_rows(n));
    }
    if (p_.few == nullptr) return;
    check_few_keys(p_.few->sizes);
    few_problem_ = turns_.few(*p_.few);
    few_.emplace(few_problem_, parts_);
  }

  void run() {
    Unit counted;
    Walk walk;
    const int64_t floats = lay_out(counted, nullptr), thread_floats = lay_out(walk, nullptr);
    const int64_t pairs = s_.batch * s_.kv_heads;
    const int64_t at_once = heads_together(pairs, floats, parts_);
    const bool parallel = products(s_) > kParallelProducts;
    float* const memory = packed_memory(at_once * floats + Team::threads(parallel) * thread_floats);
    for (int64_t first = 0; first < pairs; first += at_once) {
      std::vector<Unit> units;
      for (int64_t n = first; n < std::min(first + at_once, pairs); ++n) {
        const int64_t b = n / s_.kv_heads;
        units.push_back({.b = b, .g = n % s_.kv_heads});
        units.back().ring = &rings_[rings_.size() == 1 ? 0 : static_cast<size_t>(b)];
        lay_out(units.back(), memory + (n - first) * floats);
      }
      run_units(units, parallel, memory + at_once * floats, thread_floats);
    }
    if (few_) few_->write_keys();
    turns_.write_gradients();
  }
  bool finite() const { return !not_finite_; }

 private:
  // One key head of a row of the batch.
  struct Unit {
    int64_t b = 0, g = 0;
    const RowRing* ring = nullptr;
    std::vector<float*> delta;           // by query head: of all rows, for the sink's gradient
    float* shared = nullptr;             // of dQ: [border][query head][side][shared rows][columns]
    float *dk = nullptr, *dv = nullptr;  // block 0, then every partition's sinks: [kKeyBlock][...]
  };
  // Keys from row 0 on.
  struct Keys {
    float *k_natural = nullptr, *k_rows = nullptr, *v_natural = nullptr;
  };
  // Packed queries of a ring.
  struct Rows {
    float *q_columns = nullptr, *q_rows = nullptr, *dout_columns = nullptr, *dout_rows = nullptr;
  };
  // Memory of a thread for one partition.
  struct Walk {
    Keys keys, sinks;
    std::vector<Rows> rows;           // by query head
    std::vector<float*> dq;           // likewise: sums of the ring's rows
    std::vector<RowNumbers> numbers;  // likewise: of all rows, those of the ring are written
    std::vector<BackwardHead> heads;  // likewise
    int64_t packed = 0, written = 0;  // rows before these are
    std::vector<TileRange> ranges;    // of the present block
    std::vector<int32_t> counting;    // 0, 1, ...
    float* scratch = nullptr;
  };

  int64_t rows_floats(int64_t rows, const PackedWidth& w) const {
    return rows / table_.elements * w.columns;
  }

  // Cuts the memory of a unit, or of a thread, or (without memory) counts its floats.
  int64_t lay_out(Unit& unit, float* memory) const {
    Arena arena(memory);
    for (int64_t h = 0; h < query_heads_; ++h)
      unit.delta.push_back(arena.allocate(p_.dsink != nullptr ? queries_ : 0));
    unit.shared = arena.allocate((parts_ - 1) * query_heads_ * 2 * shared_ * dq_columns_);
    const int64_t sums = kept_ > 0 ? (1 + parts_) * kKeyBlock : 0;
    unit.dk = arena.allocate(sums * key_.columns);
    unit.dv = arena.allocate(sums * value_.columns);
    return arena.used();
  }
  int64_t lay_out(Walk& walk, float* memory) const {
    Arena arena(memory);
    walk.keys = allocate_keys(arena, kKeyBlock);
    walk.sinks = allocate_keys(arena, kept_);
    for (int64_t h = 0; h < query_heads_; ++h) {
      walk.rows.push_back({.q_columns = arena.allocate(rows_ * key_.pitch),
                           .q_rows = arena.allocate(rows_floats(rows_, key_)),
                           .dout_columns = arena.allocate(rows_ * value_.pitch),
                           .dout_rows = arena.allocate(rows_floats(rows_, value_))});
      walk.dq.push_back(arena.allocate(rows_ * dq_columns_));
      walk.numbers.push_back(
          {arena.allocate(queries_), arena.allocate(queries_), arena.allocate(queries_)});
    }
    return arena.used();
  }
  Keys allocate_keys(Arena& arena, int64_t rows) const {
    Keys keys;
    keys.k_natural = arena.allocate(rows * key_.pitch);
    keys.k_rows = arena.allocate(rows_floats(rows, key_));
    keys.v_natural = arena.allocate(rows * value_.pitch);
    return keys;
  }

  void run_units(const std::vector<Unit>& units, bool parallel, float* of_threads,
                 int64_t thread_floats) const {
    const int64_t count = std::ssize(units);
    Team::run(parallel, [&](Team::Member& team) {
      const FloatBuffer scratch(std::max({table_.backward_scratch(key_, value_, {}),
                                          table_.panel * std::max(key_.pitch, value_.pitch),
                                          few_memory(s_.head_dim, s_.value_dim)}));
      Walk walk;
      walk.scratch = scratch.data();
      lay_out(walk, of_threads + team.index() * thread_floats);
      for (int64_t n = 0; n < kKeyBlock + 1; ++n) walk.counting.push_back(static_cast<int32_t>(n));
      team.each_in_turn(count * parts_, [&](int64_t n) {
        if (n % parts_ < std::ssize(units[n / parts_].ring->partitions))
          run_partition(units[n / parts_], n % parts_, walk);
      });
      team.each(
          count * (parts_ - 1),
          [&](int64_t n) {
            const Unit& unit = units[n / (parts_ - 1)];
            const int64_t border = n % (parts_ - 1) + 1;
            if (border < std::ssize(unit.ring->partitions)) join_rows(unit, border);
          },
          Meet::no);
      team.each(
          count,
          [&](int64_t n) {
            if (units[n].ring->kept > 0) join_sinks(units[n]);
          },
          Meet::no);
      team.each(count * query_heads_, [&](int64_t n) {
        const Unit& unit = units[n / query_heads_];
        sink_gradient(p_, unit.b, unit.g * query_heads_ + n % query_heads_,
                      unit.delta[n % query_heads_]);
      });
    });
  }

  void run_partition(const Unit& unit, int64_t part, Walk& walk) const {
    const RowRing& ring = *unit.ring;
    const RingPartition& partition = ring.partitions[part];
    const Visits& visits = visits_of(p_.visits, unit.b);
    walk.packed = walk.written = partition.row_begin;
    walk.heads.clear();
    for (int64_t h = 0; h < query_heads_; ++h) {
      const RowNumbers& numbers = walk.numbers[h];
      const Rows& rows = walk.rows[h];
      walk.heads.push_back({.q_columns = rows.q_columns,
                            .q_rows = rows.q_rows,
                            .dout_columns = rows.dout_columns,
                            .dout_rows = rows.dout_rows,
                            .lse2 = numbers.lse2,
                            .delta = numbers.delta,
                            .scale = numbers.scale,
                            .dq = walk.dq[h],
                            .rule = head_rule(p_.rule, unit.b, unit.g * query_heads_ + h)});
    }
    if (ring.kept > 0) begin_sinks(unit, part, walk);
    for (int64_t block = partition.block_begin; block < partition.block_end; ++block) {
      const std::span<const TileRange> ranges = visits.by_key.of_block(block);
      ring.rows_of(block, ranges, walk.ranges);
      if (!walk.ranges.empty())
        advance(unit, part, walk, walk.ranges.front().key_begin, walk.ranges.back().key_end);
      const int64_t key = block * kKeyBlock;
      pack_keys(unit, walk.keys, key, std::min(key + kKeyBlock, s_.keys), walk.scratch);
      BackwardBlock<T> to = block_of(unit, walk, walk.keys, key, s_.keys);
      if (block == 0 && ring.kept > 0) {
        to.result = BackwardResult::sums;
        to.dk_sums = unit.dk;
        to.dv_sums = unit.dv;
      } else {
        to.dk = p_.dk.at(unit.b, unit.g);
        to.dv = p_.dv.at(unit.b, unit.g);
        to.dk_row = p_.dk.row;
        to.dv_row = p_.dv.row;
      }
      table_.backward(to, walk.scratch);
    }
    const int64_t end = std::max(ring.owned_end(part, queries_), partition.row_end);
    advance(unit, part, walk, end, end);
  }

  // Packs rows up to `end`; those before `done` are complete.
  void advance(const Unit& unit, int64_t part, Walk& walk, int64_t done, int64_t end) const {
    write(unit, part, walk, done);
    while (walk.packed < end) {
      read(unit, part, walk, std::min(end, walk.written + rows_));
      write(unit, part, walk, done);
    }
  }

  // The block of keys from `key` on, packed at `keys`, of those before `key_count`.
  BackwardBlock<T> block_of(const Unit& unit, const Walk& walk, const Keys& keys, int64_t key,
                            int64_t key_count) const {
    const Visits& visits = visits_of(p_.visits, unit.b);
    return {.key_width = key_,
            .value_width = value_,
            .dq_columns = dq_columns_,
            .key_begin = key,
            .key_count = key_count,
            .first_index = s_.keys - s_.queries,
            .k_natural = keys.k_natural - key * key_.pitch,
            .k_rows = keys.k_rows - rows_floats(key, key_),
            .v_natural = keys.v_natural - key * value_.pitch,
            .ranges = walk.ranges.data(),
            .range_count = std::ssize(walk.ranges),
            .rule = visits.rule,
            .query_places = columns_of(visits.query),
            .key_places = columns_of(visits.key),
            .ordered = visits.ordered,
            .plain = is_plain(p_.rule, PairGate::Form::none),
            .heads = walk.heads.data(),
            .head_count = query_heads_,
            .wrap = rows_ - 1,
            .fetches = false,
            .not_finite = &not_finite_};
  }

  void pack_keys(const Unit& unit, const Keys& to, int64_t begin, int64_t end,
                 float* scratch) const {
    for (int64_t key = begin; key < end; key += table_.panel) {
      const int64_t rows = std::min(table_.panel, end - key), at = key - begin;
      const int64_t next = std::clamp<int64_t>(s_.keys - key - table_.panel, 0, table_.panel);
      table_.pack(
          {p_.k.at(unit.b, unit.g, key), p_.k.row, rows, nullptr, next}, key_,
          {.natural = to.k_natural + at * key_.pitch, .rows = to.k_rows + rows_floats(at, key_)},
          scratch);
      table_.pack({p_.v.at(unit.b, unit.g, key), p_.v.row, rows, nullptr, next}, value_,
                  {.natural = to.v_natural + at * value_.pitch}, scratch);
    }
  }

  // Packs rows up to `end` into the rings, with their numbers and sums of zero; sinks meet those
  // that are seen by no other key of their block, once.
  void read(const Unit& unit, int64_t part, Walk& walk, int64_t end) const {
    const int64_t begin = walk.packed;
    for (; walk.packed < end; walk.packed += table_.panel) {
      const int64_t rows = std::clamp<int64_t>(s_.queries - walk.packed, 0, table_.panel);
      const int64_t next =
          std::clamp<int64_t>(s_.queries - walk.packed - table_.panel, 0, table_.panel);
      const int64_t at = walk.packed & (rows_ - 1);
      for (int64_t h = 0; h < query_heads_; ++h) {
        const int64_t global = unit.g * query_heads_ + h;
        const Rows& to = walk.rows[h];
        number_queries(table_, p_, unit.b, global, walk.packed, walk.packed + table_.panel,
                       walk.numbers[h]);
        if (p_.dsink != nullptr && walk.packed < unit.ring->owned_end(part, queries_))
          std::copy_n(walk.numbers[h].delta + walk.packed, table_.panel,
                      unit.delta[h] + walk.packed);
        table_.pack(
            {p_.q.at(unit.b, global, walk.packed), p_.q.row, rows, nullptr, next}, key_,
            {.columns = to.q_columns + at * key_.pitch, .rows = to.q_rows + rows_floats(at, key_)},
            walk.scratch);
        table_.pack({p_.dout.at(unit.b, global, walk.packed), p_.dout.row, rows, nullptr, next},
                    value_,
                    {.columns = to.dout_columns + at * value_.pitch,
                     .rows = to.dout_rows + rows_floats(at, value_)},
                    walk.scratch);
        float* const dq = walk.dq[h] + at * dq_columns_;
        std::fill_n(dq, table_.panel * dq_columns_, 0.0f);
        if (few_ && walk.packed < unit.ring->owned_end(part, queries_))
          few_->add({unit.b, global, walk.packed, rows}, part, walk.scratch, dq, dq_columns_);
      }
    }
    const RowRing& ring = *unit.ring;
    if (ring.kept == 0) return;
    const TileRange seen{.key_begin = std::max(begin, ring.sink_begin),
                         .key_end = std::min(walk.packed, ring.owned_end(part, queries_))};
    if (seen.key_begin >= seen.key_end) return;
    BackwardBlock<T> to = block_of(unit, walk, walk.sinks, 0, std::min(ring.kept, s_.keys));
    to.ranges = &seen;
    to.range_count = 1;
    to.result = BackwardResult::sums;
    to.dk_sums = unit.dk + (1 + part) * kKeyBlock * key_.columns;
    to.dv_sums = unit.dv + (1 + part) * kKeyBlock * value_.columns;
    to.dk_before = to.dk_sums;
    to.dv_before = to.dv_sums;
    to.before_begin = to.before = walk.counting.data();
    table_.backward(to, walk.scratch);
  }

  void begin_sinks(const Unit& unit, int64_t part, Walk& walk) const {
    const int64_t first = (1 + part) * kKeyBlock;
    std::fill_n(unit.dk + first * key_.columns, kKeyBlock * key_.columns, 0.0f);
    std::fill_n(unit.dv + first * value_.columns, kKeyBlock * value_.columns, 0.0f);
    pack_keys(unit, walk.sinks, 0, std::min(unit.ring->kept, s_.keys), walk.scratch);
  }

  // The sums of row `row` of the border before partition `border`, on its side 0 or 1.
  float* shared_row(const Unit& unit, int64_t border, int64_t h, int64_t side, int64_t row) const {
    const int64_t at = ((border - 1) * query_heads_ + h) * 2 + side;
    return unit.shared +
           (at * shared_ + row - unit.ring->partitions[border].row_begin) * dq_columns_;
  }

  // Writes rows up to `end`, or keeps their sums where another partition has some.
  void write(const Unit& unit, int64_t part, Walk& walk, int64_t end) const {
    const RowRing& ring = *unit.ring;
    end = std::min(end, walk.packed);
    for (; walk.written < end; walk.written += table_.panel) {
      const int64_t row = walk.written;
      const int64_t rows = std::clamp<int64_t>(s_.queries - row, 0, table_.panel);
      for (int64_t h = 0; h < query_heads_ && rows > 0; ++h) {
        const float* const sums = walk.dq[h] + (row & (rows_ - 1)) * dq_columns_;
        const bool before = part > 0 && row < ring.partitions[part - 1].row_end,
                   behind = row >= ring.owned_end(part, queries_);
        if (before || behind)
          std::copy_n(sums, table_.panel * dq_columns_,
                      shared_row(unit, behind ? part + 1 : part, h, behind ? 0 : 1, row));
        else
          write_sums(unit, h, row, rows, sums, 0, 1);
      }
    }
  }

  void join_rows(const Unit& unit, int64_t border) const {
    const int64_t begin = unit.ring->partitions[border].row_begin;
    const int64_t end = std::min(unit.ring->partitions[border - 1].row_end, s_.queries);
    for (int64_t h = 0; h < query_heads_ && begin < end; ++h)
      write_sums(unit, h, begin, end - begin, shared_row(unit, border, h, 0, begin),
                 shared_ * dq_columns_, 2);
  }

  void write_sums(const Unit& unit, int64_t h, int64_t row, int64_t rows, const float* parts,
                  int64_t size, int64_t count) const {
    const int64_t global = unit.g * query_heads_ + h;
    table_.query_gradient({.parts = parts,
                           .part_size = size,
                           .part_count = count,
                           .rows = rows,
                           .width = s_.head_dim,
                           .columns = dq_columns_,
                           .dq = p_.dq.at(unit.b, global, row),
                           .dq_row = p_.dq.row,
                           .turns = turns_.at(unit.b, global, row),
                           .turn = key_.columns,
                           .not_finite = &not_finite_});
  }

  // dK and dV of block 0: what its own rows give, then what every partition's rows give to sinks.
  void join_sinks(const Unit& unit) const {
    const RowRing& ring = *unit.ring;
    const int64_t keys = std::min(kKeyBlock, s_.keys);
    const auto join = [&](const float* sums, const PackedWidth& width, const HeadRows<T>& to) {
      std::vector<const float*> parts;
      std::vector<int32_t> begins{0};
      for (int64_t key = 0; key < keys; ++key) {
        const int64_t count = key < ring.kept ? 1 + std::ssize(ring.partitions) : 1;
        for (int64_t n = 0; n < count; ++n)
          parts.push_back(sums + (n * kKeyBlock + key) * width.columns);
        begins.push_back(static_cast<int32_t>(parts.size()));
      }
      table_.join({.parts = parts.data(),
                   .part_begin = begins.data(),
                   .rows = keys,
                   .width = width.elements,
                   .out = to.at(unit.b, unit.g, 0),
                   .out_row = to.row,
                   .not_finite = &not_finite_});
    };
    join(unit.dk, key_, p_.dk);
    join(unit.dv, value_, p_.dv);
  }

  const AttentionBackward<T>& p_;
  const AttentionSizes& s_;
  const AttentionTable<T>& table_;
  const PackedWidth key_, value_;
  const int64_t query_heads_, queries_, dq_columns_;
  mutable RowTurns<AttentionBackward<T>> turns_;
  FewKeysGradient<T> few_problem_;
  const std::vector<RowRing>& rings_;
  int64_t rows_ = 0, kept_ = 0, parts_ = 1, shared_ = 0;
  mutable std::optional<FewGradient<T>> few_;  // threads add to parts of their own
  mutable bool not_finite_ = false;            // some result is not; threads note it
};

}  // namespace fovea::kernels
