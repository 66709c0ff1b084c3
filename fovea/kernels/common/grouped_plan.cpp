// Making a plan: checks, columns by token, the choice.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/grouped_plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/kernels/common/grouped_cost.h"
#include "fovea/kernels/common/grouped_far.h"

namespace fovea {
namespace {

constexpr std::string_view kWhere = "grouped plan";
constexpr int64_t kMostGroups = 64;
constexpr int64_t kLargest = std::numeric_limits<int32_t>::max() / 2;
constexpr uint64_t kEveryGroup = ~uint64_t{0};

// Empty where documents are runs whose positions ascend.
std::optional<std::string> disorder(std::span<const TokenPlace> places, int64_t window) {
  std::unordered_set<int64_t> seen;
  for (size_t n = 0; n < places.size(); ++n) {
    const TokenPlace& at = places[n];
    const int64_t largest = kLargest - window;
    if (at.position < -largest || at.position > largest)
      return fmt::format("positions must be between {} and {}; got {}", -largest, largest,
                         at.position);
    const bool starts = n == 0 || at.document != places[n - 1].document;
    if (!starts && at.position <= places[n - 1].position)
      return fmt::format(
          "positions must ascend inside a document; token {} is at {} after {}; sort the tokens", n,
          at.position, places[n - 1].position);
    if (starts && n > 0) {
      seen.insert(places[n - 1].document);
      if (seen.contains(at.document))
        return fmt::format(
            "the tokens of a document must be neighbours; document {} goes on at "
            "token {} after another one",
            at.document, n);
    }
  }
  return std::nullopt;
}

void check(const GroupedRule& rule, const GroupedTokens& tokens) {
  require<ConfigError>(rule.groups >= 1 && rule.groups <= kMostGroups, kWhere,
                       "groups must be 1 to {}; got {}", kMostGroups, rule.groups);
  require<ConfigError>(rule.window >= 1 && rule.window <= kLargest && rule.sinks >= 0, kWhere,
                       "window must be at least 1 and sinks 0 or larger; got {} and {}",
                       rule.window, rule.sinks);
  const int64_t keys = std::ssize(tokens.places);
  require<ShapeError>(
      std::ssize(tokens.members) == keys && tokens.queries >= 0 && tokens.queries <= keys, kWhere,
      "expected {} memberships and at most as many queries; got {} and {}", keys,
      tokens.members.size(), tokens.queries);
  if (rule.groups < kMostGroups) {
    for (size_t n = 0; n < tokens.members.size(); ++n) {
      const uint64_t unknown = tokens.members[n] >> rule.groups;
      require<ShapeError>(
          unknown == 0, kWhere,
          "memberships are bits 0 to {}; token {} is in group {}; compute them with "
          "the spec's number of groups",
          rule.groups - 1, n, rule.groups + std::countr_zero(unknown));
    }
  }
  if (const auto why = why_not_grouped_plans(rule, tokens.places))
    fail<ShapeError>(kWhere, "{}", *why);
}

// Sets of groups by tiles: those that some and that all tokens from `first` on are in. Keys count
// sinks in every group.
struct TileSets {
  std::span<const uint64_t> any, all;
};
TileSets tile_sets(GroupedPlan& plan, std::span<const uint64_t> members, int64_t first, bool keys) {
  const int64_t tokens = plan.keys - first, size = plan.sizes.tile,
                tiles = (tokens + size - 1) / size;
  std::vector<uint64_t> any(static_cast<size_t>(tiles)), all(any.size());
  for (int64_t tile = 0; tile < tiles; ++tile) {
    uint64_t some = 0, every = kEveryGroup;
    const int64_t begin = first + tile * size, end = std::min(begin + size, plan.keys);
    for (int64_t n = begin; n < end; ++n) {
      const bool sink = keys && plan.key.position[n] < plan.rule.sinks;
      some |= sink ? kEveryGroup : members[n];
      every &= sink ? kEveryGroup : members[n];
    }
    any[tile] = some;
    all[tile] = every;
  }
  return {plan.memory.keep(std::move(any)), plan.memory.keep(std::move(all))};
}

int32_t low_bits(uint64_t x) { return static_cast<int32_t>(static_cast<uint32_t>(x)); }

// Positions and documents by token.
void set_places(GroupedPlan& plan, std::span<const TokenPlace> places) {
  const int64_t block = plan.sizes.keys;
  // One tile more than whole blocks: the queries of a chunk may begin inside a tile.
  const auto padded =
      static_cast<size_t>((plan.keys + block - 1) / block * block + plan.sizes.tile);
  std::vector<int32_t> position(padded), document(padded, -2), documents;
  for (size_t n = 0; n < places.size(); ++n) {
    if (n == 0 || places[n].document != places[n - 1].document)
      documents.push_back(static_cast<int32_t>(n));
    position[n] = static_cast<int32_t>(places[n].position);
    document[n] = static_cast<int32_t>(documents.size()) - 1;
  }
  documents.push_back(static_cast<int32_t>(plan.keys));
  plan.key.position = plan.memory.keep(std::move(position));
  plan.key.document = plan.memory.keep(std::move(document));
  plan.documents = plan.memory.keep(std::move(documents));
}

// What is near, by two pointers.
void set_near_ranges(GroupedPlan& plan) {
  std::vector<int32_t> near_begin(static_cast<size_t>(plan.keys)), far_from(near_begin.size());
  const auto window = static_cast<int32_t>(plan.rule.window);
  const int32_t* position = plan.key.position.data();
  for (size_t d = 0; d + 1 < plan.documents.size(); ++d) {
    const int32_t begin = plan.documents[d], end = plan.documents[d + 1];
    int32_t near = begin;
    for (int32_t n = begin; n < end; ++n) {
      for (; position[n] - position[near] >= window; ++near) far_from[near] = n;
      near_begin[n] = near;
    }
    for (; near < end; ++near) far_from[near] = end;
  }
  plan.near_begin = plan.memory.keep(std::move(near_begin));
  plan.far_from = plan.memory.keep(std::move(far_from));
}

// The rule of the pass in the tokens' order, and the columns that it reads.
void set_near_rule(GroupedPlan& plan, std::span<const uint64_t> members) {
  const MaskRule& mask = plan.rule.mask;
  if (plan.has_far()) {
    plan.near = {.causal = true, .limited = true, .reach = static_cast<int32_t>(plan.rule.window)};
    return;
  }
  plan.near = visit_rule(mask);
  const size_t padded = plan.key.position.size();
  const bool compares = plan.kind == GroupedKind::block_sparse;
  if (!plan.near.limited && !compares) return;
  std::vector<int32_t> pattern_id(padded), open(padded);
  for (int64_t n = 0; n < plan.keys; ++n) {
    const bool sink = compares && plan.key.position[n] < plan.rule.sinks;
    pattern_id[n] = visit_pattern_id(mask, plan.key.position[n]);
    open[n] = visit_open(mask, plan.key.position[n]) | (sink ? TokenColumns::kOpenToAll : 0);
  }
  plan.key.pattern_id = plan.memory.keep(std::move(pattern_id));
  plan.key.open = plan.memory.keep(std::move(open));
  if (!compares) return;
  const bool wide = plan.rule.groups > 32;
  std::vector<int32_t> low(padded), high(wide ? padded : 0);
  for (int64_t n = 0; n < plan.keys; ++n) {
    const uint64_t set = plan.key.position[n] < plan.rule.sinks ? kEveryGroup : members[n];
    low[n] = low_bits(set);
    if (wide) high[n] = low_bits(set >> 32);
  }
  plan.low = plan.memory.keep(std::move(low));
  plan.high = plan.memory.keep(std::move(high));
  // Sinks have every group; that shows them to all tokens but those without any.
  const bool outside = std::ranges::find(members, uint64_t{0}) != members.end();
  plan.near.opens |= plan.rule.sinks > 0 && outside;
  plan.near.members = MemberRule::meet_or_near;
  plan.near.near = static_cast<int32_t>(plan.rule.window);
}

// Far pairs are bounded by comparisons of positions alone.
bool mask_allows_far(const GroupedRule& rule) {
  return rule.mask.causal && rule.mask.sparsity == MaskRule::Sparsity::full &&
         (rule.mask.window == 0 || rule.mask.window >= rule.window);
}

bool every_two_meet(const std::vector<uint64_t>& sets) {
  for (size_t a = 0; a < sets.size(); ++a) {
    for (size_t b = 0; b <= a; ++b) {
      if ((sets[a] & sets[b]) == 0) return false;
    }
  }
  return !sets.empty();
}

// What stands against the groups plan; its slots are linear only if tokens are in few groups.
bool groups_possible(const GroupedPlan& plan, std::span<const uint64_t> members) {
  int64_t slots = 0;
  for (const uint64_t set : members) {
    if (set == 0 && plan.rule.sinks > 0) return false;
    slots += std::popcount(set);
  }
  return slots <= 8 * plan.keys;
}

// Makes `plan` of the wanted kind, or of the cheapest. It has all columns but those of the kind.
class Chooser {
 public:
  Chooser(GroupedPlan& plan, std::span<const uint64_t> members)
      : plan_(plan), members_(members), sets_(member_sets(members)) {}

  void build(GroupedKind kind) {
    const std::string why = reason_against(kind);
    require<ConfigError>(why.empty(), kWhere, "plan {} is not possible here: {}",
                         enum_names(kind)[static_cast<size_t>(kind)], why);
    plan_.kind = kind;
    if (kind == GroupedKind::classes) plan_.far = class_pairs(plan_, sets_, plan_.memory);
    if (kind == GroupedKind::groups) plan_.far = group_pairs(plan_, members_, plan_.memory);
    plan_.reason = "requested";
  }

  void choose() {
    plan_.kind = GroupedKind::dense;
    plan_.reason = "any two sets of groups meet";
    if (reason_against(GroupedKind::dense).empty()) return;
    plan_.kind = GroupedKind::block_sparse;
    plan_.reason = "the mask compares more than positions";
    if (plan_.queries == 0 || !mask_allows_far(plan_.rule)) return;
    const double tiles = tiles_cost(plan_);
    plan_.kind = GroupedKind::classes;  // near pairs are the same in both
    const double near = near_cost(plan_);
    double classes = -1.0, groups = -1.0;
    const auto several = [](uint64_t set) { return (set & (set - 1)) != 0; };
    if ((sets_.sets.empty() || std::ranges::any_of(sets_.sets, several)) &&
        reason_against(GroupedKind::groups).empty())
      groups = near + groups_cost(plan_, members_);
    if (reason_against(GroupedKind::classes).empty()) {
      classes = near + least_classes_cost(plan_, sets_);
      if (classes < (groups >= 0.0 ? std::min(tiles, groups) : tiles))
        classes = near + build_classes();
    }
    const bool by_classes = !plan_.far.lists.empty() && classes < tiles;
    if (groups >= 0.0 && groups < (by_classes ? classes : tiles)) {
      build(GroupedKind::groups);
    } else if (!by_classes) {
      plan_.kind = GroupedKind::block_sparse;
      plan_.far = {};
    }
    plan_.reason =
        fmt::format("predicted scores a query: block_sparse {:.0f}, classes {:.0f}, groups {:.0f}",
                    tiles, classes, groups);
  }

 private:
  // Builds the lists and returns what their pass costs.
  double build_classes() {
    plan_.far = class_pairs(plan_, sets_, plan_.memory);
    return classes_cost(plan_);
  }

  // Why a kind is not possible; "" where it is.
  std::string reason_against(GroupedKind kind) const {
    const bool known = !sets_.sets.empty() || plan_.keys == 0;
    switch (kind) {
      case GroupedKind::dense:
        return every_two_meet(sets_.sets) ? "" : "some tokens share no group";
      case GroupedKind::block_sparse:
        return "";
      case GroupedKind::classes:
        if (!known) return fmt::format("more than {} different sets of groups", kMostClasses);
        break;
      case GroupedKind::groups:
        if (!groups_possible(plan_, members_))
          return "tokens must be in one group at least, and in 8 on average at most";
        break;
      case GroupedKind::lists:
        return "groups are no lists (listed_plan.h)";
    }
    return mask_allows_far(plan_.rule)
               ? ""
               : "the mask must have no window, or one of at least the groups' own";
  }

  GroupedPlan& plan_;
  std::span<const uint64_t> members_;
  MemberSets sets_;
};

}  // namespace

std::span<const std::string_view> enum_names(GroupedKind) {
  static constexpr std::string_view names[] = {"dense", "block_sparse", "classes", "groups",
                                               "lists"};
  return names;
}

void set_token_places(GroupedPlan& plan, std::span<const TokenPlace> places) {
  set_places(plan, places);
  set_near_ranges(plan);
}

std::optional<std::string> why_not_grouped_plans(const GroupedRule& rule,
                                                 std::span<const TokenPlace> places) {
  if (!rule.mask.causal) return "groups of tokens need a causal mask";
  return disorder(places, rule.window);
}

GroupedPlan make_grouped_plan(const GroupedRule& rule, const GroupedTokens& tokens,
                              const TileSizes& sizes, std::optional<GroupedKind> wanted) {
  check(rule, tokens);
  GroupedPlan plan;
  plan.sizes = sizes;
  plan.rule = rule;
  plan.keys = std::ssize(tokens.places);
  plan.queries = tokens.queries;
  set_token_places(plan, tokens.places);
  const TileSets keys = tile_sets(plan, tokens.members, 0, true),
                 queries = tile_sets(plan, tokens.members, plan.first_query(), false);
  plan.key_any = keys.any, plan.key_all = keys.all;
  plan.query_any = queries.any, plan.query_all = queries.all;
  Chooser chooser(plan, tokens.members);
  wanted ? chooser.build(*wanted) : chooser.choose();
  set_near_rule(plan, tokens.members);
  plan.memory.pack(plan);
  return plan;
}

}  // namespace fovea
