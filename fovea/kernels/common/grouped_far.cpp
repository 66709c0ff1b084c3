// Far pairs by classes and by groups.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/grouped_far.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace fovea {
namespace {

constexpr uint64_t kEveryGroup = ~uint64_t{0};
constexpr int32_t kBehindAll = std::numeric_limits<int32_t>::max() / 2;  // of positions

int64_t whole_tiles(const GroupedPlan& plan, int64_t n) {
  return (n + plan.sizes.tile - 1) / plan.sizes.tile * plan.sizes.tile;
}

// A small hash table from sets to their numbers.
class SetNumbers {
 public:
  // The number of a set, a new one where it is not known yet; -1 where there are too many.
  int32_t number(uint64_t set, std::vector<uint64_t>& sets) {
    size_t at = static_cast<size_t>(set * 0x9E3779B97F4A7C15u >> 54);
    while (numbers_[at] >= 0 && sets[static_cast<size_t>(numbers_[at])] != set)
      at = (at + 1) % kSlots;
    if (numbers_[at] < 0) {
      if (std::ssize(sets) == kMostClasses) return -1;
      numbers_[at] = static_cast<int32_t>(sets.size());
      sets.push_back(set);
    }
    return numbers_[at];
  }

 private:
  static constexpr size_t kSlots = 1024;
  std::vector<int32_t> numbers_ = std::vector<int32_t>(kSlots, -1);
};

// The slots of tokens from `first` on.
IntRowList slots_of(std::span<const int32_t> tokens, int64_t first, int64_t count) {
  IntRowList out;
  out.begin.assign(static_cast<size_t>(count + 1), 0);
  for (const int32_t token : tokens) {
    if (token >= first) ++out.begin[token - first + 1];
  }
  std::partial_sum(out.begin.begin(), out.begin.end(), out.begin.begin());
  out.values.resize(static_cast<size_t>(out.begin.back()));
  std::vector<int32_t> next(out.begin.begin(), out.begin.end() - 1);
  for (size_t n = 0; n < tokens.size(); ++n) {
    if (tokens[n] >= first) out.values[next[tokens[n] - first]++] = static_cast<int32_t>(n);
  }
  return out;
}

bool is_sink(const GroupedPlan& plan, int64_t token) {
  return plan.key.position[token] < plan.rule.sinks;
}

// Whether some query stands far behind a key, and whether some key is far from a query. The others
// take no slots.
bool far_as_key(const GroupedPlan& plan, int64_t token) {
  return std::max<int64_t>(plan.far_from[token], plan.first_query()) < plan.document_end(token);
}
bool far_as_query(const GroupedPlan& plan, int64_t token) {
  return token >= plan.first_query() && plan.near_begin[token] > plan.document_begin(token);
}

// Lists of slots with their columns, filled list by list.
class FarBuilder {
 public:
  // With `compared` memberships, tiles compare them.
  FarBuilder(const GroupedPlan& plan, std::span<const uint64_t> compared)
      : plan_(plan), members_(compared) {
    const MaskRule& mask = plan.rule.mask;
    const auto slots = static_cast<size_t>(plan.keys + 8 * plan.sizes.tile);
    keys_.reserve(slots);
    queries_.reserve(slots);
    far_.rule = {.causal = true, .limited = mask.window > 0};
    far_.rule.opens = far_.rule.limited && mask.sinks > 0;
    if (mask.window > 0) far_.rule.reach = static_cast<int32_t>(mask.window - plan.rule.window);
    if (!members_.empty()) far_.rule.members = MemberRule::apart;
  }

  void begin_list(uint64_t members) {
    lists_.push_back(
        {.members = members, .key_begin = std::ssize(keys_), .query_begin = std::ssize(queries_)});
  }
  void add_lists(std::span<const int32_t> keys, std::span<const int32_t> queries) {
    keys_.insert(keys_.end(), keys.begin(), keys.end());
    queries_.insert(queries_.end(), queries.begin(), queries.end());
  }
  void add_key(int32_t token) {
    if (far_as_key(plan_, token)) keys_.push_back(token);
  }
  void add_query(int32_t token) {
    if (far_as_query(plan_, token)) queries_.push_back(token);
  }
  void end_list() {
    SlotList& list = lists_.back();
    list.keys = std::ssize(keys_) - list.key_begin;
    list.queries = std::ssize(queries_) - list.query_begin;
    keys_.resize(static_cast<size_t>(whole_tiles(plan_, list.key_begin + list.keys)), -1);
    queries_.resize(static_cast<size_t>(whole_tiles(plan_, list.query_begin + list.queries)), -1);
  }
  void visit(std::span<const int32_t> lists) { visits_.add_row(lists); }

  FarPairs finish(PlanMemory& memory) {
    const auto keep = [&](IntRowList rows) {
      return IntRows{memory.keep(std::move(rows.begin)), memory.keep(std::move(rows.values))};
    };
    const bool listed = plan_.kind == GroupedKind::lists;
    join_components();
    far_.query_slots = keep(slots_of(queries_, plan_.first_query(), plan_.queries));
    far_.visited_by = keep(turned_visits());
    far_.visits = keep(std::move(visits_));
    far_.key = columns(keys_, 0, false, memory);
    far_.query = columns(queries_, listed ? 0 : plan_.rule.window, true, memory);
    far_.blocks = memory.keep(cut_blocks());
    far_.key.token = memory.keep(std::move(keys_));
    far_.query.token = memory.keep(std::move(queries_));
    far_.lists = memory.keep(std::move(lists_));
    return far_;
  }

 private:
  IntRowList turned_visits() const {
    std::vector<std::vector<int32_t>> by(lists_.size());
    for (int64_t c = 0; c < std::ssize(lists_); ++c) {
      for (const int32_t s : visits_.view().of(c)) by[s].push_back(static_cast<int32_t>(c));
    }
    IntRowList out;
    for (const auto& row : by) out.add_row(row);
    return out;
  }

  // All columns but the tokens themselves.
  SlotColumns columns(std::span<const int32_t> tokens, int64_t window, bool queries,
                      PlanMemory& memory) const {
    const size_t size = tokens.size();
    const bool opens = !queries && far_.rule.opens;
    std::vector<int32_t> position(size), document(size, queries ? -1 : -2), open(opens ? size : 0);
    const auto shift = static_cast<int32_t>(window);
    for (size_t n = 0; n < size; ++n) {
      const int32_t token = tokens[n];
      if (token < 0) {  // keys behind a list stay in its last document, so that its tiles are one
        if (queries) continue;
        position[n] = kBehindAll;
        document[n] = document[n - 1];
        continue;
      }
      position[n] = plan_.key.position[token] - shift;
      document[n] = plan_.key.document[token];
      if (opens) open[n] = visit_open(plan_.rule.mask, position[n]);
    }
    SlotColumns slots;
    slots.places = {.position = memory.keep(std::move(position)),
                    .document = memory.keep(std::move(document)),
                    .pattern_id = {},
                    .open = memory.keep(std::move(open))};
    if (!members_.empty()) set_members(slots, tokens, queries, memory);
    return slots;
  }

  // A pair counts in its lowest common group: keys keep the groups below the list's.
  void set_members(SlotColumns& slots, std::span<const int32_t> tokens, bool queries,
                   PlanMemory& memory) const {
    const bool wide = plan_.rule.groups > 32;
    std::vector<int32_t> low(tokens.size(), 0), high(wide ? tokens.size() : 0, 0);
    for (const SlotList& list : lists_) {
      const uint64_t below = queries ? kEveryGroup : list.members - 1;
      const int64_t begin = queries ? list.query_begin : list.key_begin;
      for (int64_t n = begin; n < begin + (queries ? list.queries : list.keys); ++n) {
        const int32_t token = tokens[n];
        const bool open = !queries && is_sink(plan_, token);
        const uint64_t set = (open ? kEveryGroup : members_[token]) & below;
        low[n] = static_cast<int32_t>(static_cast<uint32_t>(set));
        if (wide) high[n] = static_cast<int32_t>(static_cast<uint32_t>(set >> 32));
      }
    }
    slots.low = memory.keep(std::move(low));
    slots.high = memory.keep(std::move(high));
  }

  // List by list, so that its keys stay in the cache; long lists and late queries first, so that
  // threads finish together.
  std::vector<SlotBlock> cut_blocks() const {
    std::vector<SlotBlock> blocks;
    std::vector<int64_t> order(lists_.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    std::ranges::stable_sort(
        order, [this](int64_t a, int64_t b) { return lists_[a].queries > lists_[b].queries; });
    const int64_t block = plan_.sizes.queries;
    for (const int64_t c : order) {
      const SlotList& list = lists_[c];
      for (int64_t n = (list.queries - 1) / block * block; n >= 0 && list.queries > 0; n -= block)
        blocks.push_back({c, list.query_begin + n, std::min(block, list.queries - n)});
    }
    return blocks;
  }

  // Lists that visit each other share a component; the list of the sinks, which has no queries, is
  // one by itself.
  void join_components() {
    std::vector<int64_t> parent(lists_.size());
    std::iota(parent.begin(), parent.end(), int64_t{0});
    const auto root = [&](int64_t n) {
      while (parent[n] != n) n = parent[n] = parent[parent[n]];
      return n;
    };
    for (int64_t c = 0; c < std::ssize(lists_); ++c) {
      for (const int32_t s : visits_.view().of(c)) {
        if (lists_[s].queries > 0 || lists_[s].members != kEveryGroup) parent[root(s)] = root(c);
      }
    }
    std::vector<int64_t> number(lists_.size(), -1);
    for (int64_t c = 0; c < std::ssize(lists_); ++c) {
      int64_t& component = number[root(c)];
      if (component < 0) component = far_.components++;
      lists_[c].component = component;
    }
  }

  const GroupedPlan& plan_;
  std::span<const uint64_t> members_;
  FarPairs far_;
  std::vector<int32_t> keys_, queries_;
  std::vector<SlotList> lists_;
  IntRowList visits_;
};

}  // namespace

IntRowList key_slots_of(const GroupedPlan& plan) {
  return slots_of(plan.far.key.token, 0, plan.has_far() ? plan.keys : 0);
}

MemberSets member_sets(std::span<const uint64_t> members) {
  MemberSets out;
  out.of_token.resize(members.size());
  SetNumbers numbers;
  uint64_t last = 0;
  int32_t last_number = -1;
  for (size_t n = 0; n < members.size(); ++n) {
    if (last_number < 0 || members[n] != last) {
      last = members[n];
      last_number = numbers.number(last, out.sets);
      if (last_number < 0) return {};
    }
    out.of_token[n] = last_number;
  }
  return out;
}

FarPairs class_pairs(const GroupedPlan& plan, const MemberSets& sets, PlanMemory& memory) {
  const int64_t classes = std::ssize(sets.sets);
  std::vector<int32_t> sinks;
  for (int64_t n = 0; n < plan.keys; ++n) {
    if (is_sink(plan, n)) sinks.push_back(static_cast<int32_t>(n));
  }
  const auto meets = [&](int64_t a, int64_t b) { return (sets.sets[a] & sets.sets[b]) != 0; };
  bool apart = true;
  for (int64_t a = 0; a < classes; ++a) {
    for (int64_t b = 0; b < a; ++b) apart &= !meets(a, b);
  }
  // Where a class meets itself alone, its list holds the sinks too: they cost no tile of their own.
  const bool inside = apart && std::ssize(sinks) * classes <= std::max<int64_t>(plan.keys / 8, 64);

  // Tokens by class, stable: counting sort.
  std::vector<int64_t> begin(static_cast<size_t>(classes + 1), 0);
  for (const int32_t c : sets.of_token) ++begin[c + 1];
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<int32_t> sorted(sets.of_token.size());
  std::vector<int64_t> next(begin.begin(), begin.end() - 1);
  for (size_t n = 0; n < sorted.size(); ++n)
    sorted[next[sets.of_token[n]]++] = static_cast<int32_t>(n);

  FarBuilder build(plan, {});
  for (int64_t c = 0; c < classes; ++c) {
    build.begin_list(sets.sets[c]);
    const std::span members = std::span(sorted).subspan(begin[c], begin[c + 1] - begin[c]);
    size_t sink = 0;
    for (const int32_t token : members) {
      for (; inside && sink < sinks.size() && sinks[sink] <= token; ++sink)
        build.add_key(sinks[sink]);
      if (sets.sets[c] != 0 && !is_sink(plan, token)) build.add_key(token);
      build.add_query(token);
    }
    build.end_list();
  }
  if (!inside && !sinks.empty()) {
    build.begin_list(kEveryGroup);
    for (const int32_t token : sinks) build.add_key(token);
    build.end_list();
  }
  std::vector<int32_t> visited;
  for (int64_t c = 0; c < classes; ++c) {
    visited.clear();
    for (int64_t s = 0; s < classes; ++s) {
      if (meets(c, s) || (inside && s == c)) visited.push_back(static_cast<int32_t>(s));
    }
    if (!inside && !sinks.empty()) visited.push_back(static_cast<int32_t>(classes));
    build.visit(visited);
  }
  if (!inside && !sinks.empty()) build.visit({});
  return build.finish(memory);
}

FarPairs listed_pairs(const GroupedPlan& plan, const std::vector<std::vector<int32_t>>& keys,
                      const std::vector<std::vector<int32_t>>& queries, const IntRows& visits,
                      PlanMemory& memory) {
  FarBuilder build(plan, {});
  for (size_t c = 0; c < keys.size(); ++c) {
    build.begin_list(0);
    build.add_lists(keys[c], queries[c]);
    build.end_list();
    build.visit(visits.of(static_cast<int64_t>(c)));
  }
  return build.finish(memory);
}

FarPairs group_pairs(const GroupedPlan& plan, std::span<const uint64_t> members,
                     PlanMemory& memory) {
  FarBuilder build(plan, members);
  for (int64_t g = 0; g < plan.rule.groups; ++g) {
    const uint64_t bit = uint64_t{1} << g;
    build.begin_list(bit);
    for (int64_t n = 0; n < plan.keys; ++n) {
      const auto token = static_cast<int32_t>(n);
      const bool member = (members[n] & bit) != 0;
      if (member || is_sink(plan, n)) build.add_key(token);
      if (member) build.add_query(token);
    }
    build.end_list();
  }
  for (int64_t g = 0; g < plan.rule.groups; ++g) {
    const auto list = static_cast<int32_t>(g);
    build.visit({&list, 1});
  }
  return build.finish(memory);
}

}  // namespace fovea
