// The forward pass of grouped attention: packing, far blocks, near blocks.
//
// Keys and values are packed where they are read: into rings that stay in the cache. A far block
// reads one list, a near block after a far pass the last few panels in the tokens' order. Only
// where lists visit others, and without a far pass, all are packed first.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/grouped/grouped.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "fovea/base/error.h"
#include "fovea/kernels/cpu/grouped/grouped_driver.h"
#include "fovea/kernels/cpu/pointwise/isolation.h"

namespace fovea::kernels {

std::optional<std::string> why_not_grouped_kernels(const ScoreParameters& rule) {
  if (rule.alibi != nullptr || rule.distance_bias != nullptr)
    return "grouped kernels have no position bias";
  if (rule.dropout > 0.0f) return "grouped kernels have no dropout";
  if (rule.gate.form != PairGate::Form::none) return "grouped kernels have no soft gate";
  return std::nullopt;
}

void check_grouped(const AttentionSizes& s, const ScoreParameters& rule,
                   std::span<const GroupedPlan> plans) {
  check_sizes(s, rule.gate);
  if (const auto why = why_not_grouped_kernels(rule))
    fail<UnsupportedError>("grouped attention", "{}", *why);
  require<ShapeError>(plans.size() == 1 || std::ssize(plans) == s.batch, "grouped attention",
                      "expected 1 or {} plans; got {}", s.batch, plans.size());
  for (const GroupedPlan& plan : plans) {
    require<ShapeError>(plan.queries == s.queries && plan.keys == s.keys, "grouped attention",
                        "the plan is for {} queries and {} keys; got {} and {}", plan.queries,
                        plan.keys, s.queries, s.keys);
  }
}

namespace {

// One key head: keys and values, if all are packed first, in slots or (without a far pass) in the
// tokens' order; and the states of the query heads that read it.
struct Head {
  int64_t b = 0, g = 0;
  const GroupedPlan* plan = nullptr;
  bool by_list = false;  // nothing is packed first: far blocks read their own list alone
  float *keys = nullptr, *values = nullptr;
  float* states = nullptr;  // [query head of the key head][query slot][row_state]
};

// A block of query rows of one query head, far blocks as the plan numbers them; or a panel of keys.
struct Item {
  int64_t head = 0, h = 0, block = 0;
};

// The panels of keys [begin, end) of a head in the tokens' order, or of key slots, of which as many
// stay as fit.
struct Ring {
  const Head* head = nullptr;
  FloatBuffer memory{0};
  float *keys = nullptr, *values = nullptr;
  int64_t size = 0;  // in keys, a power of two
  int64_t begin = 0, end = 0;
};

template <class T>
struct Scratch {
  FloatBuffer floats;
  std::vector<TileRange> ranges;
  ForwardBlock<T> far, near;  // large: filled anew, not made anew
  Ring near_ring, far_ring;
};

constexpr int64_t kMostTogether = 8;      // near blocks whose keys one thread packs into its ring
constexpr int64_t kMostPrefetched = 512;  // keys of the next list that are prefetched

template <class T>
class Forward {
 public:
  Forward(const GroupedForward<T>& problem, const AttentionTable<T>* table)
      : p_(problem),
        s_(problem.sizes),
        table_(table_or(table)),
        key_(packed_width(table_, s_.head_dim)),
        value_(packed_width(table_, s_.value_dim)),
        query_heads_(s_.heads / s_.kv_heads),
        panels_((s_.keys + table_.panel - 1) / table_.panel),
        plain_(is_plain(p_.rule, PairGate::Form::none)) {
    for (const GroupedPlan& plan : p_.plans) by_list_.push_back(reads_lists(plan));
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
  bool finite() const { return !not_finite_; }

 private:
  int64_t rows_floats(int64_t rows) const { return rows / table_.elements * value_.columns; }
  // Whether lists visit themselves alone, and threads find enough of them to share.
  static bool reads_lists(const GroupedPlan& plan) {
    const FarPairs& far = plan.far;
    double all = 0.0, largest = 0.0;
    for (int64_t c = 0; c < std::ssize(far.lists); ++c) {
      for (const int32_t s : far.visits.of(c)) {
        if (s != c) return false;
      }
      const double work =
          static_cast<double>(far.lists[c].keys) * static_cast<double>(far.lists[c].queries);
      all += work;
      largest = std::max(largest, work);
    }
    constexpr double kListsPerThread = 2.0;
    const int threads = omp_get_max_threads();
    return plan.has_far() && (threads == 1 || kListsPerThread * threads * largest <= all);
  }
  bool by_list(const GroupedPlan& plan) const {
    return by_list_[static_cast<size_t>(&plan - p_.plans.data())];
  }
  int64_t packed_rows(const GroupedPlan& plan) const {
    if (by_list(plan)) return 0;
    return plan.has_far() ? key_slots(plan) : panels_ * table_.panel;
  }
  int64_t head_floats(const GroupedPlan& plan) const {
    const int64_t rows = packed_rows(plan);
    return round_up(rows * key_.pitch + rows_floats(rows) +
                        query_heads_ * query_slots(plan) * row_state(value_),
                    16);
  }

  Head make_head(int64_t n, float* at) const {
    Head head{.b = n / s_.kv_heads, .g = n % s_.kv_heads};
    head.plan = &plan_of(p_.plans, head.b);
    head.by_list = by_list(*head.plan);
    head.states = at;  // whole cache lines first
    head.keys = head.states + query_heads_ * query_slots(*head.plan) * row_state(value_);
    head.values = head.keys + packed_rows(*head.plan) * key_.pitch;
    return head;
  }

  void run_heads(const std::vector<Head>& heads) const {
    std::vector<Item> pack, far, near;
    std::vector<int64_t> far_runs, near_runs;  // of items that one thread does in turn: begins
    const int64_t blocks = (s_.queries + kQueryBlock - 1) / kQueryBlock;
    const int64_t together = std::clamp<int64_t>(
        blocks * std::ssize(heads) / (kItemsPerThread * omp_get_max_threads()), 1, kMostTogether);
    for (int64_t n = 0; n < std::ssize(heads); ++n) {
      const GroupedPlan& plan = *heads[n].plan;
      for (int64_t panel = 0; panel < packed_rows(plan) / table_.panel; ++panel)
        pack.push_back({n, 0, panel});
      for (int64_t block = 0; block < std::ssize(plan.far.blocks); ++block) {
        const bool begins =
            block == 0 || plan.far.blocks[block].list != plan.far.blocks[block - 1].list;
        for (int64_t h = 0; h < query_heads_; ++h) {
          if (!heads[n].by_list || (begins && h == 0)) far_runs.push_back(std::ssize(far));
          far.push_back({n, h, block});
        }
      }
      for (int64_t item = 0; item < blocks * query_heads_; ++item) {
        const int64_t block = item / query_heads_;
        if (!plan.has_far() || item % (together * query_heads_) == 0)
          near_runs.push_back(std::ssize(near));
        near.push_back({n, item % query_heads_, plan.has_far() ? block : blocks - 1 - block});
      }
    }
    far_runs.push_back(std::ssize(far));
    near_runs.push_back(std::ssize(near));
    Team::run(products(s_) > kParallelProducts, [&](Team::Member& team) {
      Scratch<T> scratch{
          .floats = FloatBuffer(std::max(table_.forward_scratch(key_, value_),
                                         table_.panel * std::max(key_.pitch, value_.pitch)))};
      team.each(std::ssize(pack), [&](int64_t n) {
        if (n + 1 < std::ssize(pack)) {
          const Head& other = heads[pack[n + 1].head];
          prefetch_panel(other, slot_tokens(other), pack[n + 1].block * table_.panel);
        }
        const Head& head = heads[pack[n].head];
        const int64_t begin = pack[n].block * table_.panel;
        pack_panel(head, slot_tokens(head), begin, head.keys + begin * key_.pitch,
                   head.values + rows_floats(begin), scratch);
      });
      const auto in_runs = [&team](const std::vector<Item>& items, const std::vector<int64_t>& runs,
                                   const auto& attend) {
        team.each_in_turn(std::ssize(runs) - 1, [&](int64_t run) {
          for (int64_t n = runs[run]; n < runs[run + 1]; ++n)
            attend(items[n], n + 1 < std::ssize(items) ? &items[n + 1] : nullptr);
        });
      };
      if (!far.empty())
        in_runs(far, far_runs, [&](const Item& item, const Item* next) {
          attend_far(heads, item, next, scratch);
        });
      in_runs(near, near_runs,
              [&](const Item& item, const Item* next) { attend_near(heads, item, next, scratch); });
    });
  }

  // Prefetched while the panel before is packed: rows lie in an order of their own, or a panel
  // fills a page, and either defeats the hardware's prefetching. Inline: GCC takes a function that
  // only prefetches for one that does nothing.
  static FOVEA_INLINE void prefetch(const void* row, int64_t bytes) {
    for (int64_t n = 0; n < bytes; n += 64)
      __builtin_prefetch(static_cast<const char*>(row) + n, 0, 2);
  }
  FOVEA_INLINE void prefetch_panel(const Head& head, const int32_t* tokens, int64_t begin) const {
    for (int64_t n = begin; n < begin + table_.panel; ++n) {
      const int64_t token = tokens != nullptr ? std::max(tokens[n], 0) : std::min(n, s_.keys - 1);
      prefetch(p_.k.at(head.b, head.g, token), s_.head_dim * kElement);
      prefetch(p_.v.at(head.b, head.g, token), s_.value_dim * kElement);
    }
  }
  // Tokens in the order in which a far pass reads them.
  static const int32_t* slot_tokens(const Head& head) {
    return head.plan->has_far() ? head.plan->far.key.token.data() : nullptr;
  }

  // The panel of keys from `begin` on, or of the tokens from tokens[begin] on.
  void pack_panel(const Head& head, const int32_t* tokens, int64_t begin, float* keys,
                  float* values, Scratch<T>& scratch) const {
    const int32_t* index = tokens != nullptr ? tokens + begin : nullptr;
    const int64_t first = tokens != nullptr ? 0 : begin;
    const int64_t rows = tokens != nullptr ? table_.panel : std::min(table_.panel, s_.keys - begin);
    table_.pack({p_.k.at(head.b, head.g, first), p_.k.row, rows, index}, key_, {.columns = keys},
                scratch.floats.data());
    table_.pack({p_.v.at(head.b, head.g, first), p_.v.row, rows, index}, value_, {.rows = values},
                scratch.floats.data());
  }

  // Packs the keys of a block's tile ranges into a ring of `most` keys, where the block reads them.
  void fill(Ring& ring, const Head& head, const int32_t* tokens, int64_t most,
            ForwardBlock<T>& block, Scratch<T>& scratch) const {
    if (scratch.ranges.empty()) return;
    if (ring.size < most) make(ring, most);
    const int64_t begin = scratch.ranges.front().key_begin, end = scratch.ranges.back().key_end;
    if (ring.head != &head || begin < ring.begin || begin > ring.end) {
      ring.head = &head;
      ring.begin = ring.end = begin;
    }
    for (; ring.end < end; ring.end += table_.panel) {
      const int64_t at = ring.end & (ring.size - 1);
      if (tokens != nullptr && ring.end + table_.panel < end)
        prefetch_panel(head, tokens, ring.end + table_.panel);
      pack_panel(head, tokens, ring.end, ring.keys + at * key_.pitch, ring.values + rows_floats(at),
                 scratch);
    }
    ring.begin = std::max(ring.begin, ring.end - ring.size);
    block.keys = ring.keys;
    block.values = ring.values;
    block.wrap = ring.size - 1;
  }
  void make(Ring& ring, int64_t most) const {
    ring.head = nullptr;
    ring.size = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(most)));
    ring.memory = FloatBuffer(ring.size * key_.pitch + rows_floats(ring.size));
    ring.keys = ring.memory.data();
    ring.values = ring.keys + ring.size * key_.pitch;
  }

  float* states_of(const Head& head, int64_t h) const {
    return head.states + h * query_slots(*head.plan) * row_state(value_);
  }

  void attend_far(const std::vector<Head>& heads, const Item& item, const Item* next,
                  Scratch<T>& scratch) const {
    const Head& head = heads[item.head];
    const GroupedPlan& plan = *head.plan;
    const SlotColumns& query = plan.far.query;
    const SlotBlock& slots = plan.far.blocks[item.block];
    far_tile_ranges(plan, slots, scratch.ranges);
    ForwardBlock<T>& block = scratch.far;
    begin_block(block, head, scratch.ranges);
    if (head.by_list)
      fill(scratch.far_ring, head, slot_tokens(head),
           round_up(plan.far.lists[slots.list].keys, kVisitTile), block, scratch);
    block.key_count = key_slots(plan);
    block.rule = plan.far.rule;
    block.key_places = places_of(plan.far.key.places, plan.far.key.low, plan.far.key.high);
    block.result = ForwardResult::states;
    set_rows(block, head, item.h, slots.rows, query.token.data() + slots.begin);
    float* const states = states_of(head, item.h) + slots.begin * row_state(value_);
    const auto copy = [&](std::span<const int32_t> column, int32_t* rows) {
      if (!column.empty()) std::copy_n(column.begin() + slots.begin, slots.rows, rows);
    };
    copy(query.places.position, block.position);
    copy(query.low, block.members_low);
    copy(query.high, block.members_high);
    for (int64_t row = 0; row < slots.rows; ++row)
      block.state_out[row] = states + row * row_state(value_);
    prefetch_states(block, states, slots.rows, nullptr);
    if (next != nullptr) {
      const Head& other = heads[next->head];
      const SlotBlock& rows = other.plan->far.blocks[next->block];
      const int32_t* const tokens = other.plan->far.query.token.data() + rows.begin;
      add_prefetch(block, queries_from(other, next->h, 0, rows.rows, tokens));
      const SlotList& list = other.plan->far.lists[rows.list];
      if (other.by_list && (&other != &head || rows.list != slots.list))
        prefetch_keys(block, other, 0, std::min(list.keys, kMostPrefetched),
                      other.plan->far.key.token.data() + list.key_begin);
    }
    table_.forward(block, scratch.floats.data());
  }

  void attend_near(const std::vector<Head>& heads, const Item& item, const Item* next,
                   Scratch<T>& scratch) const {
    const Head& head = heads[item.head];
    const GroupedPlan& plan = *head.plan;
    const int64_t begin = item.block * kQueryBlock;
    const int64_t rows = std::min(kQueryBlock, s_.queries - begin);
    near_tile_ranges(plan, begin, rows, scratch.ranges);
    ForwardBlock<T>& block = scratch.near;
    begin_block(block, head, scratch.ranges);
    if (plan.has_far())  // keys begin `window` tokens before the rows, and tiles before these
      fill(scratch.near_ring, head, nullptr,
           std::min(plan.rule.window, s_.keys) + kQueryBlock + 2 * kVisitTile, block, scratch);
    block.key_count = s_.keys;
    block.rule = plan.near;
    block.key_places = places_of(plan.key, plan.low, plan.high);
    block.states = plan.has_far() ? states_of(head, item.h) : nullptr;
    set_rows(block, head, item.h, rows, nullptr, begin);
    const int64_t token = plan.first_query() + begin;
    const auto copy = [&](std::span<const int32_t> column, int32_t* to) {
      if (!column.empty()) std::copy_n(column.begin() + token, rows, to);
    };
    copy(plan.key.position, block.position);
    copy(plan.key.pattern_id, block.pattern_id);
    copy(plan.low, block.members_low);
    copy(plan.high, block.members_high);
    for (int64_t row = 0; plan.has_far() && row < rows; ++row) {
      const std::span<const int32_t> slots = plan.far.query_slots.of(begin + row);
      block.earlier[row] = slots.data();
      block.earlier_count[row] = std::ssize(slots);
    }
    const int64_t global = head.g * query_heads_ + item.h;
    add_prefetch(block, {p_.out.at(head.b, global, begin), p_.out.row * kElement,
                         s_.value_dim * kElement, rows});
    if (next != nullptr) prefetch_near(block, heads[next->head], *next, scratch.near_ring);
    table_.forward(block, scratch.floats.data());
  }

  static constexpr int64_t kElement = sizeof(T);
  static void add_prefetch(ForwardBlock<T>& block, const PrefetchRows& rows) {
    if (rows.count > 0) block.prefetch[block.prefetch_count++] = rows;
  }
  void prefetch_states(ForwardBlock<T>& block, const float* states, int64_t count,
                       const int32_t* slots) const {
    constexpr int64_t kFloat = sizeof(float);
    add_prefetch(block,
                 {states, row_state(value_) * kFloat, (value_.columns + 2) * kFloat, count, slots});
  }
  // Query rows from `row` on, or those of `tokens`, which count the keys before the first query.
  PrefetchRows queries_from(const Head& head, int64_t h, int64_t row, int64_t count,
                            const int32_t* tokens) const {
    return {p_.q.at(head.b, head.g * query_heads_ + h, row),
            p_.q.row * kElement,
            s_.head_dim * kElement,
            count,
            tokens,
            tokens != nullptr ? head.plan->first_query() : 0};
  }
  // What a near block reads: queries, states, and keys and values that are not in the ring yet.
  void prefetch_near(ForwardBlock<T>& block, const Head& head, const Item& item,
                     const Ring& ring) const {
    const GroupedPlan& plan = *head.plan;
    const int64_t begin = item.block * kQueryBlock;
    const int64_t rows = std::min(kQueryBlock, s_.queries - begin);
    add_prefetch(block, queries_from(head, item.h, begin, rows, nullptr));
    if (!plan.has_far()) return;
    const IntRows& slots = plan.far.query_slots;
    prefetch_states(block, states_of(head, item.h), slots.begin[begin + rows] - slots.begin[begin],
                    slots.values.data() + slots.begin[begin]);
    if (!plan.has_near()) return;
    const int64_t last = plan.first_query() + begin + rows;
    const int64_t first = ring.head == &head ? std::min(ring.end, last) : last - rows;
    prefetch_keys(block, head, first, last - first, nullptr);
  }
  void prefetch_keys(ForwardBlock<T>& block, const Head& head, int64_t first, int64_t count,
                     const int32_t* index) const {
    add_prefetch(block, {p_.k.at(head.b, head.g, first), p_.k.row * kElement,
                         s_.head_dim * kElement, count, index});
    add_prefetch(block, {p_.v.at(head.b, head.g, first), p_.v.row * kElement,
                         s_.value_dim * kElement, count, index});
  }

  void begin_block(ForwardBlock<T>& block, const Head& head,
                   const std::vector<TileRange>& ranges) const {
    block.keys = head.keys;
    block.values = head.values;
    block.wrap = -1;
    block.key_width = key_;
    block.value_width = value_;
    block.ranges = ranges.data();
    block.range_count = std::ssize(ranges);
    block.ordered = true;
    block.plain = plain_;
    block.not_finite = &not_finite_;
    block.rows = 0;
    block.prefetch_count = 0;
  }

  // What rows of a head are read from and, where the block's result is output, written to: `rows`
  // queries, those of `tokens` or from `first` on.
  void set_rows(ForwardBlock<T>& block, const Head& head, int64_t h, int64_t rows,
                const int32_t* tokens, int64_t first = 0) const {
    const int64_t global = head.g * query_heads_ + h, first_query = head.plan->first_query();
    const int64_t n = head.b * s_.heads + global;
    block.rows = rows;
    for (int64_t r = 0; r < rows; ++r)
      block.index[r] = tokens != nullptr ? tokens[r] : first_query + first + r;
    const T* const q = p_.q.at(head.b, global, 0);
    const int32_t* const document = head.plan->key.document.data();
    const bool writes = block.result == ForwardResult::output;
    T* const out = writes ? p_.out.at(head.b, global, first) : nullptr;
    T* const rest = writes ? p_.out_rest.at_or_null(head.b, global, first) : nullptr;
    float* const lse = writes && p_.lse != nullptr ? p_.lse + n * s_.queries + first : nullptr;
    float* const stats = p_.stats != nullptr ? p_.stats + n * s_.queries * kRowStats : nullptr;
    for (int64_t r = 0; r < rows; ++r) block.q[r] = q + (block.index[r] - first_query) * p_.q.row;
    for (int64_t r = 0; r < rows; ++r) block.document[r] = document[block.index[r]];
    for (int64_t r = 0; writes && r < rows; ++r) block.out[r] = out + r * p_.out.row;
    for (int64_t r = 0; writes && r < rows; ++r)
      block.rest[r] = rest != nullptr ? rest + r * p_.out_rest.row : nullptr;
    for (int64_t r = 0; writes && r < rows; ++r) block.lse[r] = lse != nullptr ? lse + r : nullptr;
    for (int64_t r = 0; stats != nullptr && r < rows; ++r)
      block.stats[r] = stats + (block.index[r] - first_query) * kRowStats;
    const float* const tau = p_.rule.tau != nullptr ? p_.rule.tau + head.b * s_.queries : nullptr;
    for (int64_t r = 0; tau != nullptr && r < rows; ++r)
      block.scale[r] = 1.0f / tau[block.index[r] - first_query];
    if (block.head[0] == &rules_[n]) return;
    // The same for all rows of a head, and the next block is mostly of this one, too.
    std::fill_n(block.head, kQueryBlock, &rules_[n]);
    std::fill_n(block.sink, kQueryBlock,
                p_.rule.sink_logit != nullptr ? p_.rule.sink_logit[global]
                                              : -std::numeric_limits<float>::infinity());
    if (stats == nullptr) std::fill_n(block.stats, kQueryBlock, nullptr);
    if (tau == nullptr) std::fill_n(block.scale, kQueryBlock, p_.rule.scale);
  }

  const GroupedForward<T>& p_;
  const AttentionSizes& s_;
  const AttentionTable<T>& table_;
  const PackedWidth key_, value_;
  const int64_t query_heads_, panels_;
  const bool plain_;
  std::vector<bool> by_list_;  // of plans
  std::vector<HeadRule> rules_;
  mutable bool not_finite_ = false;  // some result is not; threads note it
};

}  // namespace

template <class T>
void run(const GroupedForward<T>& problem, const AttentionTable<T>* table) {
  check_grouped(problem.sizes, problem.rule, problem.plans);
  if (problem.sizes.batch * problem.sizes.heads * problem.sizes.queries == 0) return;
  const auto run_once = [table](const GroupedForward<T>& p) {
    Forward<T> forward(p, table);
    forward.run();
    return forward.finite();
  };
  if (!run_once(problem)) ForwardIsolation<GroupedForward, T>(problem).repair(run_once);
}
template void run(const GroupedForward<float>&, const AttentionTable<float>*);
template void run(const GroupedForward<BFloat16>&, const AttentionTable<BFloat16>*);

}  // namespace fovea::kernels
