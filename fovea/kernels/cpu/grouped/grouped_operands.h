// Operands of the backward pass of grouped attention: packed keys and queries, and numbers of rows
// (internal to kernels/cpu). They are in the tokens' order or in that of a far pass's slots.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <limits>

#include "fovea/kernels/cpu/arena.h"
#include "fovea/kernels/cpu/grouped/grouped_driver.h"

namespace fovea::kernels {

/// Keys and values: where row 0 is, or would be.
struct PackedKeys {
  float *k_natural = nullptr, *k_rows = nullptr, *v_natural = nullptr;
};

/// Queries of one head, likewise.
struct PackedQueries {
  float *q_columns = nullptr, *q_rows = nullptr, *dout_columns = nullptr, *dout_rows = nullptr;
};

/// One key head of a batch row.
struct KeyHead {
  int64_t b = 0, g = 0;
  const GroupedPlan* plan = nullptr;
};

template <class T>
class GradientOperands {
 public:
  GradientOperands(const GroupedBackward<T>& problem, const AttentionTable<T>* given)
      : table(table_or(given)),
        key(packed_width(table, problem.sizes.head_dim)),
        value(packed_width(table, problem.sizes.value_dim)),
        query_heads(problem.sizes.heads / problem.sizes.kv_heads),
        p_(problem),
        s_(problem.sizes) {}

  const AttentionTable<T>& table;
  const PackedWidth key, value;
  const int64_t query_heads;  ///< query heads of a key head

  int64_t rows_floats(int64_t rows, const PackedWidth& w) const {
    return rows / table.elements * w.columns;
  }
  int64_t key_floats(int64_t rows) const {
    return rows * (key.pitch + value.pitch) + rows_floats(rows, key);
  }
  int64_t query_floats(int64_t rows) const { return key_floats(rows) + rows_floats(rows, value); }
  /// Arguments of pack_keys() and pack_queries().
  int64_t scratch_floats() const { return table.panel * std::max(key.pitch, value.pitch); }

  /// Room for rows from `first` on.
  PackedKeys allocate_keys(Arena& arena, int64_t rows, int64_t first) const {
    PackedKeys keys;
    keys.k_natural = arena.allocate(rows * key.pitch) - first * key.pitch;
    keys.k_rows = arena.allocate(rows_floats(rows, key)) - rows_floats(first, key);
    keys.v_natural = arena.allocate(rows * value.pitch) - first * value.pitch;
    return keys;
  }
  PackedQueries allocate_queries(Arena& arena, int64_t rows, int64_t first) const {
    PackedQueries queries;
    queries.q_columns = arena.allocate(rows * key.pitch) - first * key.pitch;
    queries.q_rows = arena.allocate(rows_floats(rows, key)) - rows_floats(first, key);
    queries.dout_columns = arena.allocate(rows * value.pitch) - first * value.pitch;
    queries.dout_rows = arena.allocate(rows_floats(rows, value)) - rows_floats(first, value);
    return queries;
  }

  /// Keys [begin, end) of the tokens' order or of the far pass's slots.
  void pack_keys(const KeyHead& head, const PackedKeys& to, bool far, int64_t begin, int64_t end,
                 float* scratch) const {
    const int64_t real = far ? end : s_.keys;
    for (; begin < end; begin += table.panel) {
      const int32_t* index = far ? head.plan->far.key.token.data() + begin : nullptr;
      const int64_t first = far ? 0 : begin;
      const int64_t rows = std::clamp<int64_t>(real - begin, 0, table.panel);
      const int64_t next_rows = std::clamp<int64_t>(real - begin - table.panel, 0, table.panel);
      table.pack({p_.k.at(head.b, head.g, first), p_.k.row, rows, index, next_rows}, key,
                 {.natural = to.k_natural + begin * key.pitch,
                  .rows = to.k_rows + rows_floats(begin, key)},
                 scratch);
      table.pack({p_.v.at(head.b, head.g, first), p_.v.row, rows, index, next_rows}, value,
                 {.natural = to.v_natural + begin * value.pitch}, scratch);
    }
  }

  /// Queries [begin, end) of query head h of the key head likewise, into rows n & wrap.
  void pack_queries(const KeyHead& head, int64_t h, const PackedQueries& to, int64_t wrap, bool far,
                    int64_t begin, int64_t end, float* scratch) const {
    const int64_t global = head.g * query_heads + h;
    const int64_t real = far ? end : s_.queries;
    const int32_t offset = static_cast<int32_t>(head.plan->first_query());
    int32_t index[2 * kVisitTile];  // of this panel and the next one
    for (; begin < end; begin += table.panel) {
      const int64_t rows = std::clamp<int64_t>(real - begin, 0, table.panel), at = begin & wrap;
      const int64_t next_rows = std::clamp<int64_t>(real - begin - table.panel, 0, table.panel);
      for (int64_t n = 0; far && n < rows + next_rows; ++n)
        index[n] = std::max(head.plan->far.query.token[begin + n] - offset, -1);
      const int32_t* const tokens = far ? index : nullptr;
      const int64_t first = far ? 0 : begin;
      table.pack(
          {p_.q.at(head.b, global, first), p_.q.row, rows, tokens, next_rows}, key,
          {.columns = to.q_columns + at * key.pitch, .rows = to.q_rows + rows_floats(at, key)},
          scratch);
      table.pack({p_.dout.at(head.b, global, first), p_.dout.row, rows, tokens, next_rows}, value,
                 {.columns = to.dout_columns + at * value.pitch,
                  .rows = to.dout_rows + rows_floats(at, value)},
                 scratch);
    }
  }

  /// Numbers of query slots [begin, end) from those of their tokens.
  static void number_slots(const GroupedPlan& plan, const RowNumbers& from, const RowNumbers& to,
                           int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const bool exists = plan.far.query.token[n] >= 0;
      const int64_t i = plan.far.query.token[n] - plan.first_query();
      to.scale[n] = exists ? from.scale[i] : 0.0f;
      to.delta[n] = exists ? from.delta[i] : 0.0f;
      to.lse2[n] = exists ? from.lse2[i] : std::numeric_limits<float>::infinity();
    }
  }

 private:
  const GroupedBackward<T>& p_;
  const AttentionSizes& s_;
};

}  // namespace fovea::kernels
