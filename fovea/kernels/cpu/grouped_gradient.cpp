// The backward pass of grouped attention: the plan's tiles seen from the keys, then sums.
//
// Work is cut into shares of key blocks; a share has dQ sums of its own for the queries that its
// keys reach, dK and dV are private to a key block. Shares depend on the plan alone. Afterwards
// every row of dQ, dK and dV is the sum of its parts in a fixed order.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "fovea/kernels/cpu/grouped_driver.h"

namespace fovea::kernels {
namespace {

// Rows of queries or keys that one task prepares or joins.
constexpr int64_t kRowTask = 256;
// Keys of a share of near pairs, at least: its queries reach one window further.
constexpr int64_t kNearShare = 1024;

// Keys [begin, end) of the tokens' order or of one list's slots.
struct KeyBlock {
  int64_t list = 0, begin = 0, end = 0;
};

// Key blocks with common dQ sums, rows [row_begin, row_end) of queries or query slots.
struct Share {
  bool far = false;
  std::vector<KeyBlock> blocks;
  int64_t row_begin = 0, row_end = 0;

  int64_t rows() const { return row_end - row_begin; }
};

// The shares of a plan. Far shares come first: their blocks are the longest.
class Shares {
 public:
  explicit Shares(const GroupedPlan& plan) : plan_(plan) {
    if (plan.has_far()) add_far();
    plan.has_far() ? add_near() : add_tiles();
  }
  const std::vector<Share>& all() const { return shares_; }

 private:
  // Deals blocks round robin to `parts` shares like `share`.
  void deal(const Share& share, const std::vector<KeyBlock>& blocks, int64_t parts) {
    for (int64_t part = 0; part < parts; ++part) {
      shares_.push_back(share);
      for (int64_t n = part; n < std::ssize(blocks); n += parts)
        shares_.back().blocks.push_back(blocks[n]);
    }
  }

  void add_far() {
    const FarPairs& far = plan_.far;
    const int64_t slots = query_slots(plan_);
    std::vector<Share> parts(static_cast<size_t>(far.components),
                             Share{.far = true, .row_begin = slots, .row_end = 0});
    std::vector<std::vector<KeyBlock>> blocks(parts.size());
    for (int64_t s = 0; s < std::ssize(far.lists); ++s) {
      const SlotList& list = far.lists[s];
      Share& part = parts[list.component];
      for (int64_t n = 0; n < list.keys; n += kKeyBlock)
        blocks[list.component].push_back(
            {s, list.key_begin + n, list.key_begin + std::min(n + kKeyBlock, list.keys)});
      for (const int32_t c : far.visited_by.of(s)) {
        const SlotList& visitor = far.lists[c];
        part.row_begin = std::min(part.row_begin, visitor.query_begin);
        part.row_end =
            std::max(part.row_end, visitor.query_begin + round_up(visitor.queries, kVisitTile));
      }
    }
    join_if_large(parts, blocks);
    for (size_t n = 0; n < parts.size(); ++n) {
      parts[n].row_begin = std::min(parts[n].row_begin, parts[n].row_end);
      const int64_t keys = std::ssize(blocks[n]) * kKeyBlock;
      deal(parts[n], blocks[n], parts.size() >= 4 ? 1 : std::clamp<int64_t>(keys / 1024, 1, 8));
    }
  }

  // Components whose lists lie apart have long ranges of rows; all in one keep memory linear.
  void join_if_large(std::vector<Share>& parts, std::vector<std::vector<KeyBlock>>& blocks) const {
    int64_t rows = 0;
    for (const Share& part : parts) rows += std::max<int64_t>(part.rows(), 0);
    if (rows <= 3 * query_slots(plan_)) return;
    for (size_t n = 1; n < parts.size(); ++n)
      blocks[0].insert(blocks[0].end(), blocks[n].begin(), blocks[n].end());
    blocks.resize(1);
    parts.assign(1, Share{.far = true, .row_begin = 0, .row_end = query_slots(plan_)});
  }

  std::vector<KeyBlock> key_blocks(int64_t begin, int64_t end) const {
    std::vector<KeyBlock> blocks;
    for (int64_t n = begin; n < end; n += kKeyBlock)
      blocks.push_back({0, n, std::min(n + kKeyBlock, plan_.keys)});
    return blocks;
  }

  void add_near() {
    const int64_t size = std::max(kNearShare, round_up(plan_.rule.window, kKeyBlock));
    const int64_t offset = plan_.first_query();
    for (int64_t begin = 0; begin < plan_.keys; begin += size) {
      const int64_t end = std::min(begin + size, plan_.keys);
      Share share;
      share.row_begin = std::max<int64_t>(begin - offset, 0) / kVisitTile * kVisitTile;
      share.row_end =
          std::max(share.row_begin,
                   round_up(std::max<int64_t>(plan_.far_from[end - 1] - offset, 0), kVisitTile));
      deal(share, key_blocks(begin, end), 1);
    }
  }

  void add_tiles() {
    Share share;
    share.row_end = round_up(plan_.queries, kVisitTile);
    deal(share, key_blocks(0, plan_.keys), std::clamp<int64_t>(plan_.keys / 512, 1, 8));
  }

  const GroupedPlan& plan_;
  std::vector<Share> shares_;
};

// Keys or values in one order.
struct PackedKeys {
  float *k_natural = nullptr, *k_rows = nullptr, *v_natural = nullptr;
  float *dk = nullptr, *dv = nullptr;  // sums
};

// Queries of one head in one order.
struct PackedQueries {
  float *q_columns = nullptr, *q_rows = nullptr, *dout_columns = nullptr, *dout_rows = nullptr;
  float *lse2 = nullptr, *delta = nullptr, *scale = nullptr;
};

struct Unit {
  int64_t b = 0, g = 0;
  const GroupedPlan* plan = nullptr;
  const std::vector<Share>* shares = nullptr;
  PackedKeys keys[2];                           // near, far
  std::vector<PackedQueries> queries[2];        // by query head
  std::vector<std::vector<float*>> share_sums;  // dQ by share and query head
};

struct Task {
  int64_t unit = 0, index = 0;
};

struct Scratch {
  FloatBuffer floats;
  std::vector<Strip> strips;
  std::vector<const float*> parts;
  std::vector<int32_t> part_begin;
};

template <class T>
class Backward {
 public:
  explicit Backward(const GroupedBackward<T>& problem)
      : p_(problem),
        s_(problem.sizes),
        table_(attention_table<T>()),
        key_(packed_width(table_, s_.head_dim)),
        value_(packed_width(table_, s_.value_dim)),
        group_(s_.heads / s_.kv_heads),
        keys_(round_up(s_.keys, kVisitTile)),
        queries_(round_up(s_.queries, kVisitTile)) {
    for (const GroupedPlan& plan : p_.plans) {
      shares_.push_back(Shares(plan).all());
      key_slots_.push_back(key_slots_of(plan));
    }
  }

  void run() {
    int64_t floats = 0, items = 1;
    for (size_t n = 0; n < p_.plans.size(); ++n) {
      floats = std::max(floats, lay_out(p_.plans[n], shares_[n], nullptr, nullptr));
      items = std::max(items, std::ssize(shares_[n]));
    }
    const int64_t pairs = s_.batch * s_.kv_heads;
    const int64_t at_once = heads_together(pairs, floats, items);
    float* const memory = packed_memory(at_once * floats);
    for (int64_t first = 0; first < pairs; first += at_once) {
      std::vector<Unit> units;
      for (int64_t n = first; n < std::min(first + at_once, pairs); ++n) {
        const int64_t b = n / s_.kv_heads;
        const size_t at = p_.plans.size() == 1 ? 0 : static_cast<size_t>(b);
        Unit unit{.b = b, .g = n % s_.kv_heads, .plan = &p_.plans[at], .shares = &shares_[at]};
        lay_out(*unit.plan, *unit.shares, memory + (n - first) * floats, &unit);
        units.push_back(std::move(unit));
      }
      run_units(units);
    }
  }

 private:
  int64_t rows_floats(int64_t rows, const PackedWidth& w) const {
    return rows / table_.elements * w.columns;
  }

  // Cuts the memory of a unit, or (without one) counts its floats.
  int64_t lay_out(const GroupedPlan& plan, const std::vector<Share>& shares, float* memory,
                  Unit* unit) const {
    int64_t used = 0;
    const auto take = [&](float*& to, int64_t floats) {
      if (unit != nullptr) to = memory + used;
      used += round_up(floats, 16);
    };
    float* unused = nullptr;
    for (int order = 0; order < (plan.has_far() ? 2 : 1); ++order) {
      const int64_t keys = order == 0 ? keys_ : key_slots(plan);
      const int64_t rows = order == 0 ? queries_ : query_slots(plan);
      PackedKeys packed;
      take(packed.k_natural, keys * key_.pitch);
      take(packed.k_rows, rows_floats(keys, key_));
      take(packed.v_natural, keys * value_.pitch);
      take(packed.dk, keys * key_.columns);
      take(packed.dv, keys * value_.columns);
      if (unit != nullptr) unit->keys[order] = packed;
      for (int64_t h = 0; h < group_; ++h) {
        PackedQueries q;
        take(q.q_columns, rows * key_.pitch);
        take(q.q_rows, rows_floats(rows, key_));
        take(q.dout_columns, rows * value_.pitch);
        take(q.dout_rows, rows_floats(rows, value_));
        take(q.lse2, rows);
        take(q.delta, rows);
        take(q.scale, rows);
        if (unit != nullptr) unit->queries[order].push_back(q);
      }
    }
    for (const Share& share : shares) {
      if (unit != nullptr) unit->share_sums.emplace_back(static_cast<size_t>(group_));
      for (int64_t h = 0; h < group_; ++h)
        take(unit != nullptr ? unit->share_sums.back()[h] : unused, share.rows() * key_.columns);
    }
    return used;
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

  void run_units(const std::vector<Unit>& units) const {
    const auto row_tasks = [](int64_t rows) { return (rows + kRowTask - 1) / kRowTask; };
    const auto each = tasks(units, [&](const Unit&) { return group_ * row_tasks(queries_); });
    const auto keys = tasks(units, [&](const Unit&) { return row_tasks(keys_); });
    const auto far_rows =
        tasks(units, [&](const Unit& u) { return group_ * row_tasks(query_slots(*u.plan)); });
    const auto far_keys =
        tasks(units, [&](const Unit& u) { return row_tasks(key_slots(*u.plan)); });
    const auto shares = tasks(units, [](const Unit& u) { return std::ssize(*u.shares); });
    Team::run(products(s_) > kParallelProducts, [&](Team::Member& team) {
      Scratch own{FloatBuffer(std::max(table_.backward_scratch(key_, value_, {}),
                                       table_.strip * std::max(key_.pitch, value_.pitch))),
                  {},
                  {},
                  {}};
      const auto all = [&](const std::vector<Task>& list, const auto& work, Meet meet) {
        team.each(
            std::ssize(list), [&](int64_t n) { work(units[list[n].unit], list[n].index); }, meet);
      };
      all(
          keys, [&](const Unit& u, int64_t n) { pack_keys(u, n, 0, own); }, Meet::no);
      all(
          far_keys, [&](const Unit& u, int64_t n) { pack_keys(u, n, 1, own); }, Meet::no);
      all(
          each, [&](const Unit& u, int64_t n) { prepare(u, n % group_, n / group_, own); },
          Meet::yes);
      all(
          far_rows, [&](const Unit& u, int64_t n) { prepare_far(u, n % group_, n / group_, own); },
          Meet::yes);
      team.each_in_turn(std::ssize(shares),
                        [&](int64_t n) { run_share(units[shares[n].unit], shares[n].index, own); });
      all(
          keys, [&](const Unit& u, int64_t n) { join_keys(u, n, own); }, Meet::no);
      all(
          each, [&](const Unit& u, int64_t n) { join_queries(u, n % group_, n / group_, own); },
          Meet::no);
      if (p_.dsink != nullptr)
        team.each(std::ssize(units) * group_,
                  [&](int64_t n) { join_sink(units[n / group_], n % group_); });
    });
  }

  void pack_keys(const Unit& unit, int64_t task, int order, Scratch& own) const {
    const PackedKeys& to = unit.keys[order];
    const int64_t all = order == 0 ? keys_ : key_slots(*unit.plan);
    const int64_t end = std::min((task + 1) * kRowTask, all);
    for (int64_t begin = task * kRowTask; begin < end; begin += table_.strip) {
      const int32_t* index = order == 0 ? nullptr : unit.plan->far.key.token.data() + begin;
      const int64_t first = order == 0 ? begin : 0;
      const int64_t rows =
          order == 0 ? std::clamp<int64_t>(s_.keys - begin, 0, table_.strip) : table_.strip;
      const int64_t real = order == 0 ? s_.keys : all;
      const int64_t ahead = std::clamp<int64_t>(real - begin - table_.strip, 0, table_.strip);
      table_.pack({p_.k.at(unit.b, unit.g, first), p_.k.row, rows, index, ahead}, key_,
                  {.natural = to.k_natural + begin * key_.pitch,
                   .rows = to.k_rows + rows_floats(begin, key_)},
                  own.floats.data());
      table_.pack({p_.v.at(unit.b, unit.g, first), p_.v.row, rows, index, ahead}, value_,
                  {.natural = to.v_natural + begin * value_.pitch}, own.floats.data());
    }
  }

  void pack_queries(const Unit& unit, int64_t h, int order, int64_t begin, int64_t end,
                    Scratch& own) const {
    const PackedQueries& to = unit.queries[order][h];
    const int64_t global = unit.g * group_ + h;
    const int64_t all = order == 0 ? s_.queries : query_slots(*unit.plan);
    std::vector<int32_t> index;
    for (; begin < end; begin += table_.strip) {
      int64_t rows = std::clamp<int64_t>(s_.queries - begin, 0, table_.strip), first = begin;
      const int64_t ahead = std::clamp<int64_t>(all - begin - table_.strip, 0, table_.strip);
      if (order == 1) {
        index.clear();
        for (int64_t n = begin; n < begin + table_.strip + ahead; ++n) {
          const int32_t token = unit.plan->far.query.token[n];
          index.push_back(token < 0 ? -1 : token - static_cast<int32_t>(unit.plan->first_query()));
        }
        rows = table_.strip, first = 0;
      }
      const int32_t* at = order == 1 ? index.data() : nullptr;
      table_.pack({p_.q.at(unit.b, global, first), p_.q.row, rows, at, ahead}, key_,
                  {.columns = to.q_columns + begin * key_.pitch,
                   .rows = to.q_rows + rows_floats(begin, key_)},
                  own.floats.data());
      table_.pack({p_.dout.at(unit.b, global, first), p_.dout.row, rows, at, ahead}, value_,
                  {.columns = to.dout_columns + begin * value_.pitch,
                   .rows = to.dout_rows + rows_floats(begin, value_)},
                  own.floats.data());
    }
  }

  void prepare(const Unit& unit, int64_t h, int64_t task, Scratch& own) const {
    const int64_t begin = task * kRowTask, end = std::min(begin + kRowTask, queries_);
    const int64_t real = std::min(end, s_.queries), global = unit.g * group_ + h;
    const int64_t row = (unit.b * s_.heads + global) * s_.queries + begin;
    const PackedQueries& to = unit.queries[0][h];
    pack_queries(unit, h, 0, begin, end, own);
    table_.delta({.out = p_.out.at(unit.b, global, begin),
                  .dout = p_.dout.at(unit.b, global, begin),
                  .out_row = p_.out.row,
                  .dout_row = p_.dout.row,
                  .dlse = p_.dlse != nullptr ? p_.dlse + row : nullptr,
                  .lse = p_.lse + row,
                  .rows = std::max<int64_t>(real - begin, 0),
                  .width = s_.value_dim,
                  .delta = to.delta + begin,
                  .lse2 = to.lse2 + begin});
    for (int64_t i = begin; i < end; ++i) {
      const bool exists = i < s_.queries;
      to.scale[i] = !exists                  ? 0.0f
                    : p_.rule.tau != nullptr ? 1.0f / p_.rule.tau[unit.b * s_.queries + i]
                                             : p_.rule.scale;
      if (exists) continue;
      to.delta[i] = 0.0f;
      to.lse2[i] = std::numeric_limits<float>::infinity();
    }
  }

  void prepare_far(const Unit& unit, int64_t h, int64_t task, Scratch& own) const {
    const int64_t begin = task * kRowTask,
                  end = std::min(begin + kRowTask, query_slots(*unit.plan));
    const PackedQueries &to = unit.queries[1][h], &from = unit.queries[0][h];
    pack_queries(unit, h, 1, begin, end, own);
    for (int64_t n = begin; n < end; ++n) {
      const int64_t i = unit.plan->far.query.token[n] - unit.plan->first_query();
      const bool exists = unit.plan->far.query.token[n] >= 0;
      to.scale[n] = exists ? from.scale[i] : 0.0f;
      to.delta[n] = exists ? from.delta[i] : 0.0f;
      to.lse2[n] = exists ? from.lse2[i] : std::numeric_limits<float>::infinity();
    }
  }

  void run_share(const Unit& unit, int64_t index, Scratch& own) const {
    const Share& share = (*unit.shares)[index];
    const GroupedPlan& plan = *unit.plan;
    const int order = share.far ? 1 : 0;
    std::vector<BackwardHead> heads;
    for (int64_t h = 0; h < group_; ++h) {
      float* const sums = unit.share_sums[index][h];
      std::fill(sums, sums + share.rows() * key_.columns, 0.0f);
      const PackedQueries& q = unit.queries[order][h];
      heads.push_back({.q_columns = q.q_columns,
                       .q_rows = q.q_rows,
                       .dout_columns = q.dout_columns,
                       .dout_rows = q.dout_rows,
                       .lse2 = q.lse2,
                       .delta = q.delta,
                       .scale = q.scale,
                       .dq = sums - share.row_begin * key_.columns,
                       .rule = head_rule(p_.rule, unit.b, unit.g * group_ + h)});
    }
    for (const KeyBlock& block : share.blocks) {
      share.far ? far_query_strips(plan, block.list, block.begin, block.end, own.strips)
                : near_query_strips(plan, block.begin, block.end, own.strips);
      run_block(unit, block, order, heads, own);
    }
  }

  void run_block(const Unit& unit, const KeyBlock& block, int order,
                 const std::vector<BackwardHead>& heads, Scratch& own) const {
    const GroupedPlan& plan = *unit.plan;
    const PackedKeys& keys = unit.keys[order];
    const FarPairs& far = plan.far;
    const bool is_far = order == 1;
    table_.backward(
        {.key_width = key_,
         .value_width = value_,
         .key_begin = block.begin,
         .key_count = block.end,
         .k_natural = keys.k_natural,
         .k_rows = keys.k_rows,
         .v_natural = keys.v_natural,
         .strips = own.strips.data(),
         .strip_count = std::ssize(own.strips),
         .rule = is_far ? far.rule : plan.near,
         .query_places = is_far ? places_of(far.query.places, far.query.low, far.query.high)
                                : places_of(plan.key, plan.low, plan.high, plan.first_query()),
         .key_places = is_far ? places_of(far.key.places, far.key.low, far.key.high)
                              : places_of(plan.key, plan.low, plan.high),
         .ordered = true,
         .plain = is_plain(p_.rule),
         .heads = heads.data(),
         .head_count = group_,
         .dk_sums = keys.dk,
         .dv_sums = keys.dv},
        own.floats.data());
  }

  void join_keys(const Unit& unit, int64_t task, Scratch& own) const {
    const int64_t begin = task * kRowTask, end = std::min(begin + kRowTask, s_.keys);
    if (begin >= end) return;
    const auto join = [&](float* const PackedKeys::*sums, const PackedWidth& width,
                          const HeadRows<T>& to) {
      own.parts.clear();
      own.part_begin.assign(1, 0);
      for (int64_t j = begin; j < end; ++j) {
        own.parts.push_back(unit.keys[0].*sums + j * width.columns);
        if (unit.plan->has_far()) {
          for (const int32_t slot : key_slots_[unit.plan - p_.plans.data()].of(j))
            own.parts.push_back(unit.keys[1].*sums + slot * width.columns);
        }
        own.part_begin.push_back(static_cast<int32_t>(own.parts.size()));
      }
      table_.join({.parts = own.parts.data(),
                   .part_begin = own.part_begin.data(),
                   .rows = end - begin,
                   .width = width.elements,
                   .out = to.at(unit.b, unit.g, begin),
                   .out_row = to.row});
    };
    join(&PackedKeys::dk, key_, p_.dk);
    join(&PackedKeys::dv, value_, p_.dv);
  }

  void join_queries(const Unit& unit, int64_t h, int64_t task, Scratch& own) const {
    const int64_t begin = task * kRowTask, end = std::min(begin + kRowTask, s_.queries);
    if (begin >= end) return;
    const GroupedPlan& plan = *unit.plan;
    std::vector<int64_t> here;  // shares that reach some of these rows, or any slots
    for (int64_t n = 0; n < std::ssize(*unit.shares); ++n) {
      const Share& share = (*unit.shares)[n];
      if (share.far || (share.row_begin < end && share.row_end > begin)) here.push_back(n);
    }
    own.parts.clear();
    own.part_begin.assign(1, 0);
    for (int64_t i = begin; i < end; ++i) {
      const auto slots = plan.has_far() ? plan.far.query_slots.of(i) : std::span<const int32_t>();
      for (const int64_t n : here) {
        const Share& share = (*unit.shares)[n];
        const auto add = [&](int64_t row) {
          if (row < share.row_begin || row >= share.row_end) return;
          own.parts.push_back(unit.share_sums[n][h] + (row - share.row_begin) * key_.columns);
        };
        if (!share.far) add(i);
        for (size_t m = 0; share.far && m < slots.size(); ++m) add(slots[m]);
      }
      own.part_begin.push_back(static_cast<int32_t>(own.parts.size()));
    }
    const int64_t global = unit.g * group_ + h;
    const bool tau = p_.dtau != nullptr;
    table_.join(
        {.parts = own.parts.data(),
         .part_begin = own.part_begin.data(),
         .rows = end - begin,
         .width = s_.head_dim,
         .out = p_.dq.at(unit.b, global, begin),
         .out_row = p_.dq.row,
         .q = p_.q.at(unit.b, global, begin),
         .q_row = p_.q.row,
         .tau = tau ? p_.rule.tau + unit.b * s_.queries + begin : nullptr,
         .dtau = tau ? p_.dtau + (unit.b * s_.heads + global) * s_.queries + begin : nullptr});
  }

  // P of the sink is e^(z - lse), its value 0.
  void join_sink(const Unit& unit, int64_t h) const {
    const int64_t global = unit.g * group_ + h, at = unit.b * s_.heads + global;
    const double z = p_.rule.sink_logit[global];
    double total = 0.0;
    for (int64_t i = 0; i < s_.queries; ++i)
      total -= std::exp(z - p_.lse[at * s_.queries + i]) * unit.queries[0][h].delta[i];
    p_.dsink[at] = static_cast<float>(total);
  }

  const GroupedBackward<T>& p_;
  const AttentionSizes& s_;
  const AttentionTable<T>& table_;
  const PackedWidth key_, value_;
  const int64_t group_, keys_, queries_;
  std::vector<std::vector<Share>> shares_;  // by plan
  std::vector<IntRows> key_slots_;
};

}  // namespace

template <class T>
void run(const GroupedBackward<T>& problem) {
  check_grouped(problem.sizes, problem.rule, problem.plans);
  if (problem.sizes.batch * problem.sizes.heads == 0) return;
  Backward<T>(problem).run();
}
template void run(const GroupedBackward<float>&);
template void run(const GroupedBackward<BFloat16>&);

}  // namespace fovea::kernels
