// The backward pass of grouped attention: the plan's tiles seen from the keys, then sums.
//
// Partitions of key blocks (grouped_partitions.h) have dQ sums of their own, dK and dV are private
// to a key block. First the far partitions, then the near ones, whose sums begin with those of the
// far ones and are written as soon as no later block reaches them. Rows of dQ that several near
// partitions reach are summed last; the order of sums is fixed.
//
// Operands are packed where they are read: a near partition walks through its blocks with a ring of
// the queries that one block reaches, a far partition packs its lists if nobody else reads them.
// Only what several partitions read is packed before.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>

#include "fovea/kernels/cpu/grouped/grouped_memory.h"
#include "fovea/kernels/cpu/pointwise/isolation.h"
#include "fovea/kernels/cpu/pointwise/row_turns.h"

namespace fovea::kernels {
namespace {

// Rows of queries or keys that one task prepares or joins.
constexpr int64_t kRowTask = 256;
// Packed operands up to this, half of a second-level cache of 1 MiB, are there when they are read.
constexpr int64_t kNearFloats = 1 << 17;

using Unit = GradientUnit;

struct Task {
  int64_t unit = 0, index = 0;
};

// Query rows of one head.
struct RowTask {
  int64_t unit = 0, h = 0, begin = 0, end = 0;
};

// Memory of one thread.
struct Scratch {
  FloatBuffer floats;
  float* packed = nullptr;  // operands that this thread alone reads
  std::vector<TileRange> ranges;
  std::vector<BackwardHead> heads;
  std::vector<PackedQueries> queries;
  std::vector<const float*> parts;  // of rows, as JoinRows has them
  std::vector<int32_t> part_begin;

  void begin_parts() {
    parts.clear();
    part_begin.assign(1, 0);
  }
  void end_row() { part_begin.push_back(static_cast<int32_t>(parts.size())); }
};

template <class T>
class Backward {
 public:
  Backward(const GroupedBackward<T>& problem, const AttentionTable<T>* table)
      : p_(problem),
        s_(problem.sizes),
        operands_(problem, table),
        table_(operands_.table),
        key_(operands_.key),
        value_(operands_.value),
        query_heads_(operands_.query_heads),
        queries_(round_up(s_.queries, kVisitTile)),
        parallel_(products(s_) > kParallelProducts),
        memory_(problem, operands_),
        turns_(problem) {
    for (const GroupedPlan& plan : p_.plans)
      cuts_.push_back(memory_.cut(plan, Team::threads(parallel_)));
  }

  void run() {
    int64_t floats = 0, thread_floats = 0, items = 1;
    for (size_t n = 0; n < p_.plans.size(); ++n) {
      Unit unit{{.plan = &p_.plans[n]}, &cuts_[n]};
      floats = std::max(floats, memory_.lay_out(unit, nullptr));
      thread_floats = std::max(thread_floats, memory_.thread_floats(unit));
      items = std::max(items, std::ssize(cuts_[n].partitions));
    }
    const int64_t pairs = s_.batch * s_.kv_heads;
    const int64_t at_once = heads_together(pairs, floats, items);
    float* const memory =
        packed_memory(at_once * floats + Team::threads(parallel_) * thread_floats);
    float* const of_threads = memory + at_once * floats;
    for (int64_t first = 0; first < pairs; first += at_once) {
      std::vector<Unit> units;
      for (int64_t n = first; n < std::min(first + at_once, pairs); ++n) {
        const int64_t b = n / s_.kv_heads;
        const size_t at = p_.plans.size() == 1 ? 0 : static_cast<size_t>(b);
        units.push_back({{b, n % s_.kv_heads, &p_.plans[at]}, &cuts_[at]});
        memory_.lay_out(units.back(), memory + (n - first) * floats);
      }
      run_units(units, of_threads, thread_floats);
    }
    turns_.write_gradients();
  }
  bool finite() const { return !not_finite_; }

 private:
  static bool packs_far(const std::vector<Unit>& units) {
    return std::ranges::any_of(
        units, [](const Unit& u) { return u.plan->has_far() && u.cut->packs_first; });
  }
  // Tasks of every unit: count(unit) each.
  template <class Count>
  static std::vector<Task> tasks(const std::vector<Unit>& units, const Count& count) {
    std::vector<Task> out;
    for (int64_t u = 0; u < std::ssize(units); ++u) {
      const int64_t all = count(units[u]);
      for (int64_t n = 0; n < all; ++n) out.push_back({u, n});
    }
    return out;
  }
  // Partitions of every unit, far ones or the others.
  static std::vector<Task> partition_tasks(const std::vector<Unit>& units, bool far) {
    std::vector<Task> out;
    for (const Task& task :
         tasks(units, [](const Unit& u) { return std::ssize(u.cut->partitions); }))
      if (units[task.unit].cut->partitions[task.index].far == far) out.push_back(task);
    return out;
  }
  // Rows of dQ that no near partition writes.
  std::vector<RowTask> unwritten_rows(const std::vector<Unit>& units) const {
    std::vector<RowTask> out;
    const auto add = [&](int64_t u, int64_t begin, int64_t end) {
      for (int64_t h = 0; h < query_heads_; ++h)
        for (int64_t n = begin; n < end; n += kRowTask)
          out.push_back({u, h, n, std::min({n + kRowTask, end, s_.queries})});
    };
    for (int64_t u = 0; u < std::ssize(units); ++u) {
      if (!units[u].plan->has_far() || !units[u].plan->has_near()) {
        add(u, 0, s_.queries);
        continue;
      }
      int64_t done = 0;
      for (const KeyPartition& partition : units[u].cut->partitions) {
        if (partition.far) continue;
        add(u, std::max(partition.row_begin, done), std::min(partition.alone_begin, s_.queries));
        done = std::max(done, partition.alone_begin);
      }
    }
    return out;
  }

  void run_units(const std::vector<Unit>& units, float* of_threads, int64_t thread_floats) const {
    const auto row_tasks = [](int64_t rows) { return (rows + kRowTask - 1) / kRowTask; };
    const auto keys = tasks(units, [&](const Unit& u) { return row_tasks(memory_.first_keys(u)); });
    const auto queries = tasks(
        units, [&](const Unit& u) { return query_heads_ * row_tasks(memory_.first_queries(u)); });
    const auto each = tasks(units, [&](const Unit&) { return query_heads_ * row_tasks(queries_); });
    const auto far = partition_tasks(units, true), others = partition_tasks(units, false);
    const auto unwritten_keys = tasks(
        units, [&](const Unit& u) { return u.plan->has_near() ? int64_t{0} : row_tasks(s_.keys); });
    const auto unwritten = unwritten_rows(units);
    Team::run(parallel_, [&](Team::Member& team) {
      Scratch scratch{.floats = FloatBuffer(std::max(table_.backward_scratch(key_, value_, {}),
                                                     operands_.scratch_floats())),
                      .packed = of_threads + team.index() * thread_floats};
      const auto all = [&](const std::vector<Task>& list, const auto& work, Meet meet) {
        team.each(
            std::ssize(list), [&](int64_t n) { work(units[list[n].unit], list[n].index); }, meet);
      };
      const auto in_turn = [&](const std::vector<Task>& list, const auto& work) {
        if (list.empty()) return;
        team.each_in_turn(std::ssize(list),
                          [&](int64_t n) { work(units[list[n].unit], list[n].index); });
      };
      all(
          keys, [&](const Unit& u, int64_t n) { pack_keys(u, n, scratch); }, Meet::no);
      all(
          each,
          [&](const Unit& u, int64_t n) {
            const int64_t h = n % query_heads_, begin = n / query_heads_ * kRowTask;
            number_queries(table_, p_, u.b, u.g * query_heads_ + h, begin,
                           std::min(begin + kRowTask, queries_), u.rows[0][h]);
          },
          packs_far(units) ? Meet::yes : Meet::no);
      all(
          queries,
          [&](const Unit& u, int64_t n) {
            pack_queries(u, n % query_heads_, n / query_heads_, scratch);
          },
          Meet::yes);
      in_turn(far, [&](const Unit& u, int64_t n) { run_far(u, n, scratch); });
      in_turn(others, [&](const Unit& u, int64_t n) {
        u.plan->has_far() ? run_near(u, n, scratch) : run_tiles(u, n, scratch);
      });
      all(
          unwritten_keys,
          [&](const Unit& u, int64_t n) {
            const int64_t begin = n * kRowTask;
            join_keys(u, begin, std::min(begin + kRowTask, s_.keys), scratch);
          },
          Meet::no);
      team.each(
          std::ssize(unwritten),
          [&](int64_t n) {
            const RowTask& rows = unwritten[n];
            const Unit& unit = units[rows.unit];
            unit.plan->has_far() ? join_queries(unit, rows, scratch) : sum_partitions(unit, rows);
          },
          Meet::no);
      if (p_.dsink != nullptr)
        team.each(std::ssize(units) * query_heads_,
                  [&](int64_t n) { join_sink(units[n / query_heads_], n % query_heads_); });
    });
  }

  // Tasks of what is packed first.
  void pack_keys(const Unit& unit, int64_t task, Scratch& scratch) const {
    const int64_t begin = task * kRowTask;
    operands_.pack_keys(unit, unit.keys, unit.plan->has_far(), begin,
                        std::min(begin + kRowTask, memory_.first_keys(unit)),
                        scratch.floats.data());
  }
  void pack_queries(const Unit& unit, int64_t h, int64_t task, Scratch& scratch) const {
    const int64_t begin = task * kRowTask;
    const int64_t end = std::min(begin + kRowTask, memory_.first_queries(unit));
    const bool far = unit.plan->has_far();
    if (far) operands_.number_slots(*unit.plan, unit.rows[0][h], unit.rows[1][h], begin, end);
    operands_.pack_queries(unit, h, unit.queries[h], -1, far, begin, end, scratch.floats.data());
  }

  void run_far(const Unit& unit, int64_t index, Scratch& scratch) const {
    const KeyPartition& partition = unit.cut->partitions[index];
    const GroupedPlan& plan = *unit.plan;
    PackedKeys keys = unit.keys;
    scratch.queries = unit.queries;
    const bool packs = !unit.cut->packs_first;
    if (packs) {
      Arena arena(scratch.packed);
      keys = operands_.allocate_keys(arena, partition.key_end - partition.key_begin,
                                     partition.key_begin);
      for (PackedQueries& queries : scratch.queries)
        queries = operands_.allocate_queries(arena, partition.rows(), partition.row_begin);
      for (const SlotList& list : plan.far.lists) {
        if (list.component == partition.component) pack_list(unit, partition, list, keys, scratch);
      }
    }
    scratch.heads.clear();
    for (int64_t h = 0; h < query_heads_; ++h)
      add_head(unit, h, 1, scratch.queries[h], cleared_sums(unit, index, h), scratch);
    for (const KeyBlock& block : partition.blocks) {
      far_query_tile_ranges(plan, block.list, block.begin, block.end, scratch.ranges);
      BackwardBlock<T> to = block_of(unit, block, true, keys, scratch);
      to.result = BackwardResult::sums;
      to.dk_sums = unit.dk;
      to.dv_sums = unit.dv;
      to.fetches = !packs || memory_.partition_floats(partition) > kNearFloats;
      table_.backward(to, scratch.floats.data());
    }
  }

  // Queries that visit no list may stand outside the partition's rows: nobody reads them.
  void pack_list(const Unit& unit, const KeyPartition& partition, const SlotList& list,
                 const PackedKeys& keys, Scratch& scratch) const {
    operands_.pack_keys(unit, keys, true, list.key_begin,
                        list.key_begin + round_up(list.keys, kVisitTile), scratch.floats.data());
    const int64_t end = list.query_begin + round_up(list.queries, kVisitTile);
    if (list.query_begin < partition.row_begin || end > partition.row_end) return;
    for (int64_t h = 0; h < query_heads_; ++h) {
      operands_.number_slots(*unit.plan, unit.rows[0][h], unit.rows[1][h], list.query_begin, end);
      operands_.pack_queries(unit, h, scratch.queries[h], -1, true, list.query_begin, end,
                             scratch.floats.data());
    }
  }

  void run_tiles(const Unit& unit, int64_t index, Scratch& scratch) const {
    scratch.heads.clear();
    for (int64_t h = 0; h < query_heads_; ++h)
      add_head(unit, h, 0, unit.queries[h], cleared_sums(unit, index, h), scratch);
    for (const KeyBlock& block : unit.cut->partitions[index].blocks) {
      near_query_tile_ranges(*unit.plan, block.begin, block.end, scratch.ranges);
      BackwardBlock<T> to = block_of(unit, block, false, unit.keys, scratch);
      write_keys(unit, to);
      table_.backward(to, scratch.floats.data());
    }
  }

  void write_keys(const Unit& unit, BackwardBlock<T>& block) const {
    block.dk = p_.dk.at(unit.b, unit.g);
    block.dv = p_.dv.at(unit.b, unit.g);
    block.dk_row = p_.dk.row;
    block.dv_row = p_.dv.row;
  }

  void run_near(const Unit& unit, int64_t index, Scratch& scratch) const {
    const KeyPartition& partition = unit.cut->partitions[index];
    const IntRows slots = unit.cut->key_slots.view();
    Arena arena(scratch.packed);
    NearWindow window = memory_.allocate_window(arena, *unit.plan);
    window.packed = window.written = partition.row_begin;
    scratch.heads.clear();
    for (int64_t h = 0; h < query_heads_; ++h)
      add_head(unit, h, 0, window.queries[h], window.dq[h], scratch);
    for (const KeyBlock& block : partition.blocks) {
      near_query_tile_ranges(*unit.plan, block.begin, block.end, scratch.ranges);
      if (!scratch.ranges.empty()) {
        write_rows(unit, index, window, scratch.ranges.front().key_begin, scratch);
        read_rows(unit, partition, window, scratch.ranges.back().key_end, scratch);
      }
      PackedKeys keys = window.keys;  // where the block's first key is
      keys.k_natural -= block.begin * key_.pitch;
      keys.k_rows -= operands_.rows_floats(block.begin, key_);
      keys.v_natural -= block.begin * value_.pitch;
      operands_.pack_keys(unit, keys, false, block.begin, block.begin + kKeyBlock,
                          scratch.floats.data());
      BackwardBlock<T> to = block_of(unit, block, false, keys, scratch);
      to.wrap = window.wrap;
      to.fetches = false;
      write_keys(unit, to);
      to.dk_before = unit.dk;
      to.dv_before = unit.dv;
      to.before_begin = slots.begin.data();
      to.before = slots.values.data();
      table_.backward(to, scratch.floats.data());
    }
    write_rows(unit, index, window, std::min(partition.row_end, s_.queries), scratch);
  }

  // Packs rows up to `end` into the ring. dQ begins with the sums of far partitions, unless other
  // near partitions reach the row, too.
  void read_rows(const Unit& unit, const KeyPartition& partition, NearWindow& window, int64_t end,
                 Scratch& scratch) const {
    for (; window.packed < end; window.packed += table_.panel) {
      const int64_t begin = window.packed, stop = begin + table_.panel;
      for (int64_t h = 0; h < query_heads_; ++h) {
        operands_.pack_queries(unit, h, window.queries[h], window.wrap, false, begin, stop,
                               scratch.floats.data());
        scratch.begin_parts();
        for (int64_t i = begin; i < stop; ++i) {
          if (i >= partition.alone_begin && i < std::min(partition.alone_end, s_.queries))
            add_far_parts(unit, h, i, scratch);
          scratch.end_row();
        }
        table_.join({.parts = scratch.parts.data(),
                     .part_begin = scratch.part_begin.data(),
                     .rows = table_.panel,
                     .width = memory_.dq_columns,
                     .sums = window.dq[h] + (begin & window.wrap) * memory_.dq_columns,
                     .columns = memory_.dq_columns});
      }
    }
  }

  // Rows before `end`, which no later block of the partition reaches.
  void write_rows(const Unit& unit, int64_t index, NearWindow& window, int64_t end,
                  Scratch& scratch) const {
    const KeyPartition& partition = unit.cut->partitions[index];
    while (window.written < end) {
      const int64_t begin = window.written, at = begin & window.wrap;
      const bool alone = begin >= partition.alone_begin && begin < partition.alone_end;
      const int64_t bound = alone                           ? partition.alone_end
                            : begin < partition.alone_begin ? partition.alone_begin
                                                            : end;
      const int64_t stop = std::min({end, bound, begin + kRowTask, begin + window.wrap + 1 - at});
      read_rows(unit, partition, window, stop, scratch);
      for (int64_t h = 0; h < query_heads_; ++h) {
        const float* const sums = window.dq[h] + at * memory_.dq_columns;
        if (alone)
          write_sums(unit, h, begin, stop, sums);
        else
          std::copy_n(sums, (stop - begin) * memory_.dq_columns,
                      memory_.kept_row(unit, index, h, begin));
      }
      window.written = stop;
    }
  }

  float* cleared_sums(const Unit& unit, int64_t index, int64_t h) const {
    const KeyPartition& partition = unit.cut->partitions[index];
    float* const sums = unit.partition_sums[index][h];
    std::fill_n(sums, partition.rows() * memory_.dq_columns, 0.0f);
    return sums - partition.row_begin * memory_.dq_columns;
  }

  void add_head(const Unit& unit, int64_t h, int order, const PackedQueries& queries, float* dq,
                Scratch& scratch) const {
    const RowNumbers& numbers = unit.rows[order][h];
    scratch.heads.push_back({.q_columns = queries.q_columns,
                             .q_rows = queries.q_rows,
                             .dout_columns = queries.dout_columns,
                             .dout_rows = queries.dout_rows,
                             .lse2 = numbers.lse2,
                             .delta = numbers.delta,
                             .scale = numbers.scale,
                             .dq = dq,
                             .rule = head_rule(p_.rule, unit.b, unit.g * query_heads_ + h)});
  }

  BackwardBlock<T> block_of(const Unit& unit, const KeyBlock& block, bool is_far,
                            const PackedKeys& keys, const Scratch& scratch) const {
    const GroupedPlan& plan = *unit.plan;
    const FarPairs& far = plan.far;
    return {.key_width = key_,
            .value_width = value_,
            .dq_columns = memory_.dq_columns,
            .key_begin = block.begin,
            .key_count = block.end,
            .k_natural = keys.k_natural,
            .k_rows = keys.k_rows,
            .v_natural = keys.v_natural,
            .ranges = scratch.ranges.data(),
            .range_count = std::ssize(scratch.ranges),
            .rule = is_far ? far.rule : plan.near,
            .query_places = is_far ? places_of(far.query.places, far.query.low, far.query.high)
                                   : places_of(plan.key, plan.low, plan.high, plan.first_query()),
            .key_places = is_far ? places_of(far.key.places, far.key.low, far.key.high)
                                 : places_of(plan.key, plan.low, plan.high),
            .ordered = true,
            .plain = is_plain(p_.rule, PairGate::Form::none),
            .heads = scratch.heads.data(),
            .head_count = query_heads_,
            .not_finite = &not_finite_};
  }

  // Rows of dK and dV without a near pass.
  void join_keys(const Unit& unit, int64_t begin, int64_t end, Scratch& scratch) const {
    const IntRows slots = unit.cut->key_slots.view();
    const auto join = [&](const float* sums, const PackedWidth& width, const HeadRows<T>& to) {
      scratch.begin_parts();
      for (int64_t j = begin; j < end; ++j) {
        for (const int32_t slot : slots.of(j)) scratch.parts.push_back(sums + slot * width.columns);
        scratch.end_row();
      }
      table_.join({.parts = scratch.parts.data(),
                   .part_begin = scratch.part_begin.data(),
                   .rows = end - begin,
                   .width = width.elements,
                   .out = to.at(unit.b, unit.g, begin),
                   .out_row = to.row,
                   .not_finite = &not_finite_});
    };
    join(unit.dk, key_, p_.dk);
    join(unit.dv, value_, p_.dv);
  }

  // The sums of far partitions for row i of dQ.
  void add_far_parts(const Unit& unit, int64_t h, int64_t i, Scratch& scratch) const {
    const auto slots = unit.plan->far.query_slots.of(i);
    for (int64_t n = 0; n < std::ssize(unit.cut->partitions); ++n) {
      const KeyPartition& partition = unit.cut->partitions[n];
      if (!partition.far) break;  // they come first
      for (const int32_t slot : slots) {
        if (slot >= partition.row_begin && slot < partition.row_end)
          scratch.parts.push_back(unit.partition_sums[n][h] +
                                  (slot - partition.row_begin) * memory_.dq_columns);
      }
    }
  }

  // Rows of dQ that several near partitions reach (or none).
  void join_queries(const Unit& unit, const RowTask& rows, Scratch& scratch) const {
    scratch.begin_parts();
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      add_far_parts(unit, rows.h, i, scratch);
      for (int64_t n = 0; n < std::ssize(unit.cut->partitions); ++n) {
        const KeyPartition& partition = unit.cut->partitions[n];
        if (!partition.far && i >= partition.row_begin && i < partition.row_end)
          scratch.parts.push_back(memory_.kept_row(unit, n, rows.h, i));
      }
      scratch.end_row();
    }
    const int64_t global = unit.g * query_heads_ + rows.h;
    table_.join({.parts = scratch.parts.data(),
                 .part_begin = scratch.part_begin.data(),
                 .rows = rows.end - rows.begin,
                 .width = s_.head_dim,
                 .out = p_.dq.at(unit.b, global, rows.begin),
                 .out_row = p_.dq.row,
                 .turns = turns_.at(unit.b, global, rows.begin),
                 .turn = key_.columns,
                 .not_finite = &not_finite_});
  }

  // Rows [begin, end) of dQ from `count` parts that lie `size` apart.
  void write_sums(const Unit& unit, int64_t h, int64_t begin, int64_t end, const float* parts,
                  int64_t size = 0, int64_t count = 1) const {
    const int64_t global = unit.g * query_heads_ + h;
    table_.query_gradient({.parts = parts,
                           .part_size = size,
                           .part_count = count,
                           .rows = end - begin,
                           .width = s_.head_dim,
                           .columns = memory_.dq_columns,
                           .dq = p_.dq.at(unit.b, global, begin),
                           .dq_row = p_.dq.row,
                           .turns = turns_.at(unit.b, global, begin),
                           .turn = key_.columns,
                           .not_finite = &not_finite_});
  }

  // Rows of dQ without a far pass: every partition has a part of each.
  void sum_partitions(const Unit& unit, const RowTask& rows) const {
    const auto& sums = unit.partition_sums;
    write_sums(unit, rows.h, rows.begin, rows.end,
               sums[0][rows.h] + rows.begin * memory_.dq_columns,
               sums.size() > 1 ? sums[1][rows.h] - sums[0][rows.h] : 0, std::ssize(sums));
  }

  // P of the sink is e^(z - lse), its value 0.
  void join_sink(const Unit& unit, int64_t h) const {
    const int64_t global = unit.g * query_heads_ + h, at = unit.b * s_.heads + global;
    const double z = p_.rule.sink_logit[global];
    double total = 0.0;
    for (int64_t i = 0; i < s_.queries; ++i)
      total -= std::exp(z - p_.lse[at * s_.queries + i]) * unit.rows[0][h].delta[i];
    p_.dsink[at] = static_cast<float>(total);
  }

  const GroupedBackward<T>& p_;
  const AttentionSizes& s_;
  const GradientOperands<T> operands_;
  const AttentionTable<T>& table_;
  const PackedWidth &key_, &value_;
  const int64_t query_heads_, queries_;
  const bool parallel_;
  const GradientMemory<T> memory_;
  mutable RowTurns<GroupedBackward<T>> turns_;
  std::vector<PartitionedPlan> cuts_;  // by plan
  mutable bool not_finite_ = false;    // some result is not; threads note it
};

}  // namespace

template <class T>
void run(const GroupedBackward<T>& problem, const AttentionTable<T>* table) {
  check_grouped(problem.sizes, problem.rule, problem.plans);
  if (problem.sizes.batch * problem.sizes.heads == 0) return;
  const auto run_once = [table](const GroupedBackward<T>& p) {
    Backward<T> backward(p, table);
    backward.run();
    return backward.finite();
  };
  if (run_once(problem)) return;
  const GroupedForward<T> who{.sizes = problem.sizes, .plans = problem.plans};
  BackwardIsolation<GroupedBackward, GroupedForward, T>(problem, who)
      .repair(run_once, [table](const GroupedForward<T>& p) { run(p, table); });
}
template void run(const GroupedBackward<float>&, const AttentionTable<float>*);
template void run(const GroupedBackward<BFloat16>&, const AttentionTable<BFloat16>*);

}  // namespace fovea::kernels
