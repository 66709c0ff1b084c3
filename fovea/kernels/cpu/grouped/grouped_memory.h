// Memory of the backward pass of grouped attention: that of a key head for all its partitions, that
// of a thread for one (internal to kernels/cpu).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <vector>

#include "fovea/kernels/cpu/grouped/grouped_operands.h"
#include "fovea/kernels/cpu/grouped/grouped_partitions.h"
#include "fovea/kernels/cpu/pointwise/row_turns.h"

namespace fovea::kernels {

/// A plan cut into partitions.
struct PartitionedPlan {
  std::vector<KeyPartition> partitions;
  IntRowList key_slots;     ///< by key
  bool packs_first = true;  ///< operands are packed for all partitions, before them
};

/// One key head of a batch row at work.
struct GradientUnit : KeyHead {
  const PartitionedPlan* cut = nullptr;
  /// Packed first: of a far pass by slots, else in the tokens' order.
  PackedKeys keys;
  std::vector<PackedQueries> queries;               // by query head
  std::vector<RowNumbers> rows[2];                  // near, far; by query head
  float *dk = nullptr, *dv = nullptr;               // sums of the far pass by key slot
  std::vector<std::vector<float*>> partition_sums;  // dQ by partition and query head
};

/// Memory of a near partition: the keys of one block, and a ring of queries for every head.
struct NearWindow {
  PackedKeys keys;
  int64_t wrap = 0;                    // row n stands at n & wrap of the ring
  std::vector<PackedQueries> queries;  // by head
  std::vector<float*> dq;              // sums of the ring's rows
  int64_t packed = 0, written = 0;     // rows before these are
};

template <class T>
class GradientMemory {
 public:
  /// Keeps references.
  GradientMemory(const GroupedBackward<T>& problem, const GradientOperands<T>& operands)
      : dq_columns(query_columns(operands.key, problem.dtau != nullptr)),
        s_(problem.sizes),
        operands_(operands) {}

  /// Columns of sums for dq.
  const int64_t dq_columns;

  /// Threads pack far lists for themselves where this takes no more memory than packing all.
  PartitionedPlan cut(const GroupedPlan& plan, int64_t threads) const {
    PartitionedPlan cut{.partitions = key_partitions(plan), .key_slots = key_slots_of(plan)};
    int64_t largest = 0;
    bool alone = plan.has_far();
    for (const KeyPartition& partition : cut.partitions) {
      if (!partition.far) continue;
      alone &= partition.component >= 0;
      largest = std::max(largest, partition_floats(partition));
    }
    const int64_t all = operands_.key_floats(key_slots(plan)) +
                        operands_.query_heads * operands_.query_floats(query_slots(plan));
    cut.packs_first = !alone || threads * largest > all;
    return cut;
  }

  /// Floats of packed lists.
  int64_t partition_floats(const KeyPartition& partition) const {
    return operands_.key_floats(partition.key_end - partition.key_begin) +
           operands_.query_heads * operands_.query_floats(partition.rows());
  }

  /// Rows that are packed first: of slots if there is a far pass, else of the tokens.
  int64_t first_keys(const GradientUnit& unit) const {
    if (!unit.cut->packs_first) return 0;
    return unit.plan->has_far() ? key_slots(*unit.plan) : round_up(s_.keys, kVisitTile);
  }
  int64_t first_queries(const GradientUnit& unit) const {
    if (!unit.cut->packs_first) return 0;
    return unit.plan->has_far() ? query_slots(*unit.plan) : round_up(s_.queries, kVisitTile);
  }

  /// Cuts the memory of a unit, or (without memory) counts its floats.
  int64_t lay_out(GradientUnit& unit, float* memory) const {
    Arena arena(memory);
    unit.keys = operands_.allocate_keys(arena, first_keys(unit), 0);
    const bool far = unit.plan->has_far();
    for (int64_t h = 0; h < operands_.query_heads; ++h) {
      unit.queries.push_back(operands_.allocate_queries(arena, first_queries(unit), 0));
      for (int order = 0; order < (far ? 2 : 1); ++order) {
        const int64_t rows =
            order == 0 ? round_up(s_.queries, kVisitTile) : query_slots(*unit.plan);
        unit.rows[order].push_back(
            {arena.allocate(rows), arena.allocate(rows), arena.allocate(rows)});
      }
    }
    if (far) {
      unit.dk = arena.allocate(key_slots(*unit.plan) * operands_.key.columns);
      unit.dv = arena.allocate(key_slots(*unit.plan) * operands_.value.columns);
    }
    for (const KeyPartition& partition : unit.cut->partitions) {
      unit.partition_sums.emplace_back();
      for (int64_t h = 0; h < operands_.query_heads; ++h)
        unit.partition_sums.back().push_back(
            arena.allocate(kept_rows(unit, partition) * dq_columns));
    }
    return arena.used();
  }

  /// Floats of a thread, for one partition of the unit at a time.
  int64_t thread_floats(const GradientUnit& unit) const {
    Arena near(nullptr);
    if (unit.plan->has_far() && unit.plan->has_near()) allocate_window(near, *unit.plan);
    int64_t floats = near.used();
    if (unit.cut->packs_first) return floats;
    for (const KeyPartition& partition : unit.cut->partitions)
      if (partition.far) floats = std::max(floats, partition_floats(partition));
    return floats;
  }

  NearWindow allocate_window(Arena& arena, const GroupedPlan& plan) const {
    const int64_t rows = ring_rows(plan);
    NearWindow window{.keys = operands_.allocate_keys(arena, kKeyBlock, 0), .wrap = rows - 1};
    for (int64_t h = 0; h < operands_.query_heads; ++h) {
      window.queries.push_back(operands_.allocate_queries(arena, rows, 0));
      window.dq.push_back(arena.allocate(rows * dq_columns));
    }
    return window;
  }

  /// Where a partition keeps a row of dQ that others add to.
  float* kept_row(const GradientUnit& unit, int64_t n, int64_t h, int64_t row) const {
    const KeyPartition& partition = unit.cut->partitions[n];
    const bool behind = unit.plan->has_far() && !partition.far && row >= partition.alone_end;
    const int64_t at =
        row - partition.row_begin - (behind ? partition.alone_end - partition.alone_begin : 0);
    return unit.partition_sums[n][h] + at * dq_columns;
  }

 private:
  // Rows of dQ that a partition keeps: near ones write those that they reach alone.
  static int64_t kept_rows(const GradientUnit& unit, const KeyPartition& partition) {
    const bool writes = unit.plan->has_far() && !partition.far;
    return partition.rows() - (writes ? partition.alone_end - partition.alone_begin : 0);
  }
  // Rows of the tokens' order that the keys of one block reach.
  int64_t ring_rows(const GroupedPlan& plan) const {
    const int64_t most = std::min(plan.rule.window, s_.keys) + kKeyBlock + 2 * kVisitTile;
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(most)));
  }

  const AttentionSizes& s_;
  const GradientOperands<T>& operands_;
};

}  // namespace fovea::kernels
