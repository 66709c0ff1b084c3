// Far pairs by classes and by groups.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/grouped_far.h"

#include <algorithm>
#include <limits>
#include <numeric>

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
IntRows slots_of(const std::vector<int32_t>& tokens, int64_t first, int64_t count) {
  IntRows out;
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
    far_.key.token.reserve(slots);
    far_.query.token.reserve(slots);
    far_.rule = {.causal = true, .limited = mask.window > 0};
    far_.rule.opens = far_.rule.limited && mask.sinks > 0;
    if (mask.window > 0) far_.rule.reach = static_cast<int32_t>(mask.window - plan.rule.window);
    if (!members_.empty()) far_.rule.members = MemberRule::apart;
  }

  FarPairs& far() { return far_; }

  void begin_list(uint64_t members) {
    far_.lists.push_back({.members = members,
                          .key_begin = std::ssize(far_.key.token),
                          .query_begin = std::ssize(far_.query.token)});
  }
  void add_lists(std::span<const int32_t> keys, std::span<const int32_t> queries) {
    far_.key.token.insert(far_.key.token.end(), keys.begin(), keys.end());
    far_.query.token.insert(far_.query.token.end(), queries.begin(), queries.end());
  }
  void add_key(int32_t token) {
    if (far_as_key(plan_, token)) far_.key.token.push_back(token);
  }
  void add_query(int32_t token) {
    if (far_as_query(plan_, token)) far_.query.token.push_back(token);
  }
  void end_list() {
    SlotList& list = far_.lists.back();
    list.keys = std::ssize(far_.key.token) - list.key_begin;
    list.queries = std::ssize(far_.query.token) - list.query_begin;
    far_.key.token.resize(static_cast<size_t>(whole_tiles(plan_, list.key_begin + list.keys)), -1);
    far_.query.token.resize(
        static_cast<size_t>(whole_tiles(plan_, list.query_begin + list.queries)), -1);
  }
  void visit(std::span<const int32_t> lists) {
    far_.visits.values.insert(far_.visits.values.end(), lists.begin(), lists.end());
    far_.visits.begin.push_back(static_cast<int32_t>(far_.visits.values.size()));
  }

  FarPairs finish() {
    turn_visits();
    const bool listed = plan_.kind == GroupedKind::lists;
    fill(far_.key, 0, false);
    fill(far_.query, listed ? 0 : plan_.rule.window, true);
    cut_blocks();
    far_.query_slots = slots_of(far_.query.token, plan_.first_query(), plan_.queries);
    join_components();
    return std::move(far_);
  }

 private:
  void turn_visits() {
    const int64_t lists = std::ssize(far_.lists);
    std::vector<std::vector<int32_t>> by(static_cast<size_t>(lists));
    for (int64_t c = 0; c < lists; ++c) {
      for (const int32_t s : far_.visits.of(c)) by[s].push_back(static_cast<int32_t>(c));
    }
    for (const auto& row : by) {
      IntRows& out = far_.visited_by;
      out.values.insert(out.values.end(), row.begin(), row.end());
      out.begin.push_back(static_cast<int32_t>(out.values.size()));
    }
  }

  void fill(SlotColumns& slots, int64_t window, bool queries) const {
    const size_t size = slots.token.size();
    TokenColumns& to = slots.places;
    to.position.resize(size);
    to.document.assign(size, queries ? -1 : -2);
    const bool open = !queries && far_.rule.opens;
    if (open) to.open.resize(size);
    const auto shift = static_cast<int32_t>(window);
    for (size_t n = 0; n < size; ++n) {
      const int32_t token = slots.token[n];
      if (token < 0) {  // keys behind a list stay in its last document, so that its tiles are one
        if (queries) continue;
        to.position[n] = kBehindAll;
        to.document[n] = to.document[n - 1];
        continue;
      }
      to.position[n] = plan_.key.position[token] - shift;
      to.document[n] = plan_.key.document[token];
      if (open) to.open[n] = visit_open(plan_.rule.mask, to.position[n]);
    }
    if (!members_.empty()) fill_members(slots, queries);
  }

  // A pair counts in its lowest common group: keys keep the groups below the list's.
  void fill_members(SlotColumns& slots, bool queries) const {
    const bool wide = plan_.rule.groups > 32;
    slots.low.assign(slots.token.size(), 0);
    if (wide) slots.high.assign(slots.token.size(), 0);
    for (const SlotList& list : far_.lists) {
      const uint64_t below = queries ? kEveryGroup : list.members - 1;
      const int64_t begin = queries ? list.query_begin : list.key_begin;
      for (int64_t n = begin; n < begin + (queries ? list.queries : list.keys); ++n) {
        const int32_t token = slots.token[n];
        const bool open = !queries && is_sink(plan_, token);
        const uint64_t set = (open ? kEveryGroup : members_[token]) & below;
        slots.low[n] = static_cast<int32_t>(static_cast<uint32_t>(set));
        if (wide) slots.high[n] = static_cast<int32_t>(static_cast<uint32_t>(set >> 32));
      }
    }
  }

  // List by list, so that its keys stay in the cache; long lists and late queries first, so that
  // threads finish together.
  void cut_blocks() {
    std::vector<int64_t> order(far_.lists.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    std::ranges::stable_sort(order, [this](int64_t a, int64_t b) {
      return far_.lists[a].queries > far_.lists[b].queries;
    });
    const int64_t block = plan_.sizes.queries;
    for (const int64_t c : order) {
      const SlotList& list = far_.lists[c];
      for (int64_t n = (list.queries - 1) / block * block; n >= 0 && list.queries > 0; n -= block)
        far_.blocks.push_back({c, list.query_begin + n, std::min(block, list.queries - n)});
    }
  }

  // Lists that visit each other share a component; the list of the sinks, which has no queries, is
  // one by itself.
  void join_components() {
    std::vector<int64_t> parent(far_.lists.size());
    std::iota(parent.begin(), parent.end(), int64_t{0});
    const auto root = [&](int64_t n) {
      while (parent[n] != n) n = parent[n] = parent[parent[n]];
      return n;
    };
    for (int64_t c = 0; c < std::ssize(far_.lists); ++c) {
      for (const int32_t s : far_.visits.of(c)) {
        if (far_.lists[s].queries > 0 || far_.lists[s].members != kEveryGroup)
          parent[root(s)] = root(c);
      }
    }
    std::vector<int64_t> number(far_.lists.size(), -1);
    for (int64_t c = 0; c < std::ssize(far_.lists); ++c) {
      int64_t& component = number[root(c)];
      if (component < 0) component = far_.components++;
      far_.lists[c].component = component;
    }
  }

  const GroupedPlan& plan_;
  std::span<const uint64_t> members_;
  FarPairs far_;
};

}  // namespace

IntRows key_slots_of(const GroupedPlan& plan) {
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

FarPairs class_pairs(const GroupedPlan& plan, const MemberSets& sets) {
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
  return build.finish();
}

FarPairs listed_pairs(const GroupedPlan& plan, const std::vector<std::vector<int32_t>>& keys,
                      const std::vector<std::vector<int32_t>>& queries, const IntRows& visits) {
  FarBuilder build(plan, {});
  for (size_t c = 0; c < keys.size(); ++c) {
    build.begin_list(0);
    build.add_lists(keys[c], queries[c]);
    build.end_list();
    build.visit(visits.of(static_cast<int64_t>(c)));
  }
  return build.finish();
}

FarPairs group_pairs(const GroupedPlan& plan, std::span<const uint64_t> members) {
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
  return build.finish();
}

}  // namespace fovea
