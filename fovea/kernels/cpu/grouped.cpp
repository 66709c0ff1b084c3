// The forward pass of grouped attention: packing in both orders, far blocks, near blocks.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/grouped.h"

#include <algorithm>
#include <limits>

#include "fovea/base/error.h"
#include "fovea/kernels/cpu/grouped_driver.h"

namespace fovea::kernels {

std::string_view beyond_grouped_kernels(const LogitRule& rule) {
  if (rule.alibi != nullptr || rule.distance_bias != nullptr)
    return "grouped kernels have no position bias";
  if (rule.dropout > 0.0f) return "grouped kernels have no dropout";
  if (rule.gate.form != PairGate::Form::none) return "grouped kernels have no soft gate";
  return "";
}

void check_grouped(const AttentionSizes& s, const LogitRule& rule,
                   std::span<const GroupedPlan> plans) {
  check_sizes(s, rule.gate);
  const std::string_view why = beyond_grouped_kernels(rule);
  require<UnsupportedError>(why.empty(), "grouped attention", "{}", why);
  require<ShapeError>(plans.size() == 1 || std::ssize(plans) == s.batch, "grouped attention",
                      "expected 1 or {} plans; got {}", s.batch, plans.size());
  for (const GroupedPlan& plan : plans) {
    require<ShapeError>(plan.queries == s.queries && plan.keys == s.keys, "grouped attention",
                        "the plan is for {} queries and {} keys; got {} and {}", plan.queries,
                        plan.keys, s.queries, s.keys);
  }
}

namespace {

// One key head: keys and values packed in the tokens' order and in slots, and the states of the
// query heads that read it.
struct Head {
  int64_t b = 0, g = 0;
  const GroupedPlan* plan = nullptr;
  float *keys = nullptr, *values = nullptr, *far_keys = nullptr, *far_values = nullptr;
  float* states = nullptr;  // [query head of the group][query slot][row_state]
};

// A block of query rows of one query head; `far` blocks are numbered by the plan.
struct Item {
  int64_t head = 0, h = 0, block = 0;
};

template <class T>
struct Scratch {
  FloatBuffer floats;
  std::vector<Strip> strips;
  ForwardBlock<T> far, near;  // large: filled anew, not made anew
};

template <class T>
class Forward {
 public:
  explicit Forward(const GroupedForward<T>& problem)
      : p_(problem),
        s_(problem.sizes),
        table_(attention_table<T>()),
        key_(packed_width(table_, s_.head_dim)),
        value_(packed_width(table_, s_.value_dim)),
        group_(s_.heads / s_.kv_heads),
        strips_((s_.keys + table_.strip - 1) / table_.strip),
        plain_(is_plain(p_.rule)) {
    for (int64_t b = 0; b < s_.batch; ++b) {
      for (int64_t h = 0; h < s_.heads; ++h) rules_.push_back(head_rule(p_.rule, b, h));
    }
  }

  void run() {
    int64_t floats = 0;
    for (const GroupedPlan& plan : p_.plans) floats = std::max(floats, head_floats(plan));
    const int64_t pairs = s_.batch * s_.kv_heads;
    const int64_t blocks = (s_.queries + kQueryBlock - 1) / kQueryBlock;
    const int64_t at_once = heads_together(pairs, floats, blocks);
    float* const memory = packed_memory(at_once * floats);
    for (int64_t first = 0; first < pairs; first += at_once) {
      std::vector<Head> heads;
      for (int64_t n = first; n < std::min(first + at_once, pairs); ++n)
        heads.push_back(make_head(n, memory + (n - first) * floats));
      run_heads(heads);
    }
  }

 private:
  int64_t rows_floats(int64_t rows) const { return rows / table_.elements * value_.columns; }
  int64_t head_floats(const GroupedPlan& plan) const {
    const int64_t rows = strips_ * table_.strip + key_slots(plan);
    return round_up(
        rows * key_.pitch + rows_floats(rows) + group_ * query_slots(plan) * row_state(value_), 16);
  }

  Head make_head(int64_t n, float* at) const {
    Head head{.b = n / s_.kv_heads, .g = n % s_.kv_heads};
    head.plan = &plan_of(p_.plans, head.b);
    const int64_t rows = strips_ * table_.strip, slots = key_slots(*head.plan);
    head.states = at;  // whole cache lines first
    head.keys = head.states + group_ * query_slots(*head.plan) * row_state(value_);
    head.values = head.keys + rows * key_.pitch;
    head.far_keys = head.values + rows_floats(rows);
    head.far_values = head.far_keys + slots * key_.pitch;
    return head;
  }

  void run_heads(const std::vector<Head>& heads) const {
    std::vector<Item> pack, far, near;
    for (int64_t n = 0; n < std::ssize(heads); ++n) {
      const GroupedPlan& plan = *heads[n].plan;
      for (int64_t strip = 0; strip < strips_; ++strip) pack.push_back({n, 0, strip});
      for (int64_t strip = 0; strip < key_slots(plan) / table_.strip; ++strip)
        pack.push_back({n, 1, strip});
      for (int64_t block = 0; block < std::ssize(plan.far.blocks); ++block) {
        for (int64_t h = 0; h < group_; ++h) far.push_back({n, h, block});
      }
      for (int64_t block = (s_.queries - 1) / kQueryBlock; block >= 0; --block) {
        for (int64_t h = 0; h < group_; ++h) near.push_back({n, h, block});
      }
    }
    Team::run(products(s_) > kParallelProducts, [&](Team::Member& team) {
      Scratch<T> own{.floats =
                         FloatBuffer(std::max(table_.forward_scratch(key_, value_),
                                              table_.strip * std::max(key_.pitch, value_.pitch)))};
      team.each(std::ssize(pack), [&](int64_t n) {
        if (n + 1 < std::ssize(pack)) prefetch_strip(heads[pack[n + 1].head], pack[n + 1]);
        pack_strip(heads[pack[n].head], pack[n], own);
      });
      if (!far.empty())
        team.each_in_turn(std::ssize(far), [&](int64_t n) {
          if (n + 1 < std::ssize(far)) prefetch_far(heads[far[n + 1].head], far[n + 1]);
          attend_far(heads[far[n].head], far[n], own);
        });
      team.each_in_turn(std::ssize(near), [&](int64_t n) {
        if (n + 1 < std::ssize(near)) prefetch_near(heads[near[n + 1].head], near[n + 1]);
        attend_near(heads[near[n].head], near[n], own);
      });
    });
  }

  // What the next item reads, asked for while this one is worked on: rows lie in an order of their
  // own, or a strip fills a page, and either defeats the hardware's prefetching.
  static void prefetch(const void* row, int64_t bytes) {
    for (int64_t n = 0; n < bytes; n += 64)
      __builtin_prefetch(static_cast<const char*>(row) + n, 0, 2);
  }
  void prefetch_query(const Head& head, int64_t h, int64_t i) const {
    prefetch(p_.q.at(head.b, head.g * group_ + h, i), s_.head_dim * int64_t{sizeof(T)});
  }
  void prefetch_strip(const Head& head, const Item& item) const {
    const bool far = item.h == 1;
    const int64_t begin = item.block * table_.strip;
    for (int64_t n = begin; n < begin + table_.strip; ++n) {
      const int64_t token =
          far ? std::max(head.plan->far.key.token[n], 0) : std::min(n, s_.keys - 1);
      prefetch(p_.k.at(head.b, head.g, token), s_.head_dim * int64_t{sizeof(T)});
      prefetch(p_.v.at(head.b, head.g, token), s_.value_dim * int64_t{sizeof(T)});
    }
  }
  void prefetch_far(const Head& head, const Item& item) const {
    const SlotBlock& slots = head.plan->far.blocks[item.block];
    for (int64_t n = slots.begin; n < slots.begin + slots.rows; ++n)
      prefetch_query(head, item.h, head.plan->far.query.token[n] - head.plan->first_query());
  }
  void prefetch_near(const Head& head, const Item& item) const {
    const float* const states = states_of(head, item.h);
    const int64_t begin = item.block * kQueryBlock;
    for (int64_t i = begin; i < std::min(begin + kQueryBlock, s_.queries); ++i) {
      prefetch_query(head, item.h, i);
      if (!head.plan->has_far()) continue;
      for (const int32_t slot : head.plan->far.query_slots.of(i))
        prefetch(states + slot * row_state(value_), (value_.columns + 2) * int64_t{sizeof(float)});
    }
  }

  // `h` of the item: 0 in the tokens' order, 1 in slots.
  void pack_strip(const Head& head, const Item& item, Scratch<T>& own) const {
    const int64_t begin = item.block * table_.strip;
    const bool far = item.h == 1;
    const int32_t* index = far ? head.plan->far.key.token.data() + begin : nullptr;
    const int64_t first = far ? 0 : begin;
    const int64_t rows = far ? table_.strip : std::min(table_.strip, s_.keys - begin);
    table_.pack({p_.k.at(head.b, head.g, first), p_.k.row, rows, index}, key_,
                {.columns = (far ? head.far_keys : head.keys) + begin * key_.pitch},
                own.floats.data());
    table_.pack({p_.v.at(head.b, head.g, first), p_.v.row, rows, index}, value_,
                {.rows = (far ? head.far_values : head.values) + rows_floats(begin)},
                own.floats.data());
  }

  float* states_of(const Head& head, int64_t h) const {
    return head.states + h * query_slots(*head.plan) * row_state(value_);
  }

  void attend_far(const Head& head, const Item& item, Scratch<T>& own) const {
    const GroupedPlan& plan = *head.plan;
    const SlotColumns& query = plan.far.query;
    const SlotBlock& slots = plan.far.blocks[item.block];
    far_strips(plan, slots, own.strips);
    ForwardBlock<T>& block = own.far;
    begin_block(block, own.strips);
    block.keys = head.far_keys;
    block.values = head.far_values;
    block.key_count = key_slots(plan);
    block.rule = plan.far.rule;
    block.key_places = places_of(plan.far.key.places, plan.far.key.low, plan.far.key.high);
    for (int64_t n = slots.begin; n < slots.begin + slots.rows; ++n) {
      const int64_t row = block.rows++;
      set_row(block, row, head, item.h, query.token[n] - plan.first_query());
      block.position[row] = query.places.position[n];
      if (!query.low.empty()) block.members_low[row] = query.low[n];
      if (!query.high.empty()) block.members_high[row] = query.high[n];
      block.left[row] = states_of(head, item.h) + n * row_state(value_);
    }
    table_.forward(block, own.floats.data());
  }

  void attend_near(const Head& head, const Item& item, Scratch<T>& own) const {
    const GroupedPlan& plan = *head.plan;
    const int64_t begin = item.block * kQueryBlock;
    const int64_t rows = std::min(kQueryBlock, s_.queries - begin);
    near_strips(plan, begin, rows, own.strips);
    ForwardBlock<T>& block = own.near;
    begin_block(block, own.strips);
    block.keys = head.keys;
    block.values = head.values;
    block.key_count = s_.keys;
    block.rule = plan.near;
    block.key_places = places_of(plan.key, plan.low, plan.high);
    block.states = plan.has_far() ? states_of(head, item.h) : nullptr;
    for (int64_t i = begin; i < begin + rows; ++i) {
      const int64_t row = block.rows++, token = plan.first_query() + i;
      set_row(block, row, head, item.h, i);
      block.position[row] = plan.key.position[token];
      if (!plan.key.group.empty()) block.group[row] = plan.key.group[token];
      if (!plan.low.empty()) block.members_low[row] = plan.low[token];
      if (!plan.high.empty()) block.members_high[row] = plan.high[token];
      if (!plan.has_far()) continue;
      const std::span<const int32_t> slots = plan.far.query_slots.of(i);
      block.taken[row] = slots.data();
      block.taken_count[row] = std::ssize(slots);
    }
    table_.forward(block, own.floats.data());
  }

  void begin_block(ForwardBlock<T>& block, const std::vector<Strip>& strips) const {
    block.key_width = key_;
    block.value_width = value_;
    block.strips = strips.data();
    block.strip_count = std::ssize(strips);
    block.ordered = true;
    block.plain = plain_;
    block.rows = 0;
  }

  void set_row(ForwardBlock<T>& block, int64_t row, const Head& head, int64_t h, int64_t i) const {
    const int64_t global = head.g * group_ + h;
    const int64_t n = (head.b * s_.heads + global) * s_.queries + i;
    block.q[row] = p_.q.at(head.b, global, i);
    block.out[row] = p_.out.at(head.b, global, i);
    block.lse[row] = p_.lse != nullptr ? p_.lse + n : nullptr;
    block.stats[row] = p_.stats != nullptr ? p_.stats + n * kRowStats : nullptr;
    block.document[row] = head.plan->key.document[head.plan->first_query() + i];
    block.scale[row] =
        p_.rule.tau != nullptr ? 1.0f / p_.rule.tau[head.b * s_.queries + i] : p_.rule.scale;
    block.sink[row] = p_.rule.sink_logit != nullptr ? p_.rule.sink_logit[global]
                                                    : -std::numeric_limits<float>::infinity();
    block.index[row] = head.plan->first_query() + i;
    block.head[row] = &rules_[head.b * s_.heads + global];
  }

  const GroupedForward<T>& p_;
  const AttentionSizes& s_;
  const AttentionTable<T>& table_;
  const PackedWidth key_, value_;
  const int64_t group_, strips_;
  const bool plain_;
  std::vector<HeadRule> rules_;
};

}  // namespace

template <class T>
void run(const GroupedForward<T>& problem) {
  check_grouped(problem.sizes, problem.rule, problem.plans);
  if (problem.sizes.batch * problem.sizes.heads * problem.sizes.queries == 0) return;
  Forward<T>(problem).run();
}
template void run(const GroupedForward<float>&);
template void run(const GroupedForward<BFloat16>&);

}  // namespace fovea::kernels
