// Plans of grouped attention: the tiles of every plan together hold every seen pair once and no
// other (spec 11.5, U-9).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/grouped_plan.h"
#include "fovea/kernels/cpu/tile_sizes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "tests/support/expect_error.h"
#include "tests/support/member_patterns.h"

namespace fovea::grouped_plan_test {
namespace {

using namespace fovea::testing;

constexpr GroupedKind kEveryKind[] = {GroupedKind::dense, GroupedKind::block_sparse,
                                      GroupedKind::classes, GroupedKind::groups};

std::vector<TokenPlace> documents(const std::vector<int64_t>& lengths, int64_t step = 1) {
  std::vector<TokenPlace> places;
  for (size_t d = 0; d < lengths.size(); ++d) {
    for (int64_t n = 0; n < lengths[d]; ++n)
      places.push_back({.document = static_cast<int64_t>(7 - d), .position = n * step});
  }
  return places;
}

struct Case {
  GroupedRule rule;
  std::vector<TokenPlace> places;
  std::vector<uint64_t> members;
  int64_t queries = 0;

  bool sees(int64_t i, int64_t j) const {
    const TokenPlace &query = places[i], &key = places[j];
    return allowed(rule.mask, query, key) &&
           (query.position - key.position < rule.window || key.position < rule.sinks ||
            (members[i] & members[j]) != 0);
  }
};

// Seen as the kernels see it, from columns.
struct Side {
  const TokenColumns& places;
  std::span<const int32_t> low, high;
  int64_t at;

  int32_t position() const { return places.position[at]; }
  bool meets(const Side& other) const {
    const auto common = [&](std::span<const int32_t> a, std::span<const int32_t> b) {
      return !a.empty() && !b.empty() && (a[at] & b[other.at]) != 0;
    };
    return common(low, other.low) || common(high, other.high) ||
           (!other.places.open.empty() &&
            (other.places.open[other.at] & TokenColumns::kOpenToAll) != 0);
  }
};

bool tile_sees(const VisitRule& rule, const Side& query, const Side& key) {
  if (query.places.document[query.at] != key.places.document[key.at]) return false;
  const int64_t lag = int64_t{query.position()} - key.position();
  if (lag < 0) return false;
  if (rule.members == MemberRule::apart && query.meets(key)) return false;
  if (rule.members == MemberRule::meet_or_near && !query.meets(key) && lag >= rule.near)
    return false;
  if (!rule.limited) return true;
  if (!rule.opens && !rule.patterned) return lag < rule.reach;
  return lag < rule.reach ||
         (rule.patterned && query.places.pattern_id[query.at] == key.places.pattern_id[key.at]) ||
         (key.places.open[key.at] & ~TokenColumns::kOpenToAll) != 0;
}

// How often the passes visit every pair [queries][keys]; a full range must not hold an unseen one.
class Count {
 public:
  Count(const Case& c, const GroupedPlan& plan)
      : case_(c), plan_(plan), times_(static_cast<size_t>(plan.queries * plan.keys), 0) {}

  void near(const TileRange& range, int64_t query, int64_t key) {
    if (key >= plan_.keys || query >= plan_.queries) return;
    const int64_t token = plan_.first_query() + query;
    if (range.kind == TileRange::Kind::compared) {  // places are not looked at
      const Side a{plan_.key, plan_.low, plan_.high, token},
          b{plan_.key, plan_.low, plan_.high, key};
      visit(range, a.meets(b), query, key);
      return;
    }
    visit(range,
          tile_sees(plan_.near, {plan_.key, plan_.low, plan_.high, token},
                    {plan_.key, plan_.low, plan_.high, key}),
          query, key);
  }
  void far(const TileRange& range, int64_t query_slot, int64_t key_slot) {
    const FarPairs& f = plan_.far;
    const int32_t token = f.query.token[query_slot], key = f.key.token[key_slot];
    const bool seen = tile_sees(f.rule, {f.query.places, f.query.low, f.query.high, query_slot},
                                {f.key.places, f.key.low, f.key.high, key_slot});
    if (token < 0) return;
    if (key < 0) {
      EXPECT_FALSE(seen || range.kind == TileRange::Kind::full);
      return;
    }
    visit(range, seen, token - plan_.first_query(), key);
  }
  void expect_once(const std::string& what) const {
    int64_t wrong = 0;
    for (int64_t i = 0; i < plan_.queries; ++i) {
      for (int64_t j = 0; j < plan_.keys; ++j) {
        const int expected = case_.sees(plan_.first_query() + i, j) ? 1 : 0;
        wrong += times_[static_cast<size_t>(i * plan_.keys + j)] != expected ? 1 : 0;
      }
    }
    EXPECT_EQ(wrong, 0) << what << ", pairs of " << plan_.queries * plan_.keys;
    EXPECT_FALSE(full_unseen_) << what << ": a full range holds an unseen pair";
  }

 private:
  void visit(const TileRange& range, bool seen, int64_t query, int64_t key) {
    if (range.kind == TileRange::Kind::full) {
      full_unseen_ |= !seen;
      seen = true;
    }
    times_[static_cast<size_t>(query * plan_.keys + key)] += seen ? 1 : 0;
  }

  const Case& case_;
  const GroupedPlan& plan_;
  std::vector<int> times_;
  bool full_unseen_ = false;
};

void expect_forward(const Case& c, const GroupedPlan& plan, const std::string& what) {
  Count count(c, plan);
  std::vector<TileRange> ranges;
  for (int64_t begin = 0; begin < plan.queries; begin += kernels::kQueryBlock) {
    const int64_t rows = std::min(kernels::kQueryBlock, plan.queries - begin);
    near_tile_ranges(plan, begin, rows, ranges);
    for (const TileRange& range : ranges) {
      EXPECT_EQ(range.key_begin % kernels::kVisitTile, 0);
      for (int64_t i = begin; i < begin + rows; ++i) {
        for (int64_t j = range.key_begin; j < range.key_end; ++j) count.near(range, i, j);
      }
    }
  }
  for (const SlotBlock& block : plan.far.blocks) {
    far_tile_ranges(plan, block, ranges);
    for (const TileRange& range : ranges) {
      EXPECT_EQ(range.key_begin % kernels::kVisitTile, 0);
      for (int64_t i = block.begin; i < block.begin + block.rows; ++i) {
        for (int64_t j = range.key_begin; j < range.key_end; ++j) count.far(range, i, j);
      }
    }
  }
  count.expect_once(what + " forward");
}

void expect_backward(const Case& c, const GroupedPlan& plan, const std::string& what) {
  Count count(c, plan);
  std::vector<TileRange> ranges;
  for (int64_t begin = 0; begin < plan.keys; begin += kernels::kKeyBlock) {
    const int64_t end = std::min(begin + kernels::kKeyBlock, plan.keys);
    near_query_tile_ranges(plan, begin, end, ranges);
    for (const TileRange& range : ranges) {
      EXPECT_EQ(range.key_begin % kernels::kVisitTile, 0);
      for (int64_t i = range.key_begin; i < range.key_end; ++i) {
        for (int64_t j = begin; j < end; ++j) count.near(range, i, j);
      }
    }
  }
  for (int64_t s = 0; s < std::ssize(plan.far.lists); ++s) {
    const SlotList& list = plan.far.lists[s];
    for (int64_t n = 0; n < list.keys; n += kernels::kKeyBlock) {
      const int64_t begin = list.key_begin + n;
      const int64_t end = list.key_begin + std::min(n + kernels::kKeyBlock, list.keys);
      far_query_tile_ranges(plan, s, begin, end, ranges);
      for (const TileRange& range : ranges) {
        EXPECT_EQ(range.key_begin % kernels::kVisitTile, 0);
        for (int64_t i = range.key_begin; i < range.key_end; ++i) {
          for (int64_t j = begin; j < end; ++j) count.far(range, i, j);
        }
      }
    }
  }
  count.expect_once(what + " backward");
}

// Every plan that is possible for the case.
int check_all(const Case& c, const std::string& what) {
  int made = 0;
  for (const GroupedKind kind : kEveryKind) {
    GroupedPlan plan;
    try {
      plan = make_grouped_plan(c.rule, {c.places, c.members, c.queries}, kernels::kTileSizes, kind);
    } catch (const ConfigError&) {
      continue;
    }
    ++made;
    const std::string name(enum_names(kind)[static_cast<size_t>(kind)]);
    expect_forward(c, plan, what + ", " + name);
    expect_backward(c, plan, what + ", " + name);
  }
  return made;
}

TEST(GroupedPlan, EveryPlanVisitsEverySeenPairOnceForEveryPattern) {
  constexpr int64_t tokens = 331;
  for (const int64_t sinks : {0, 4}) {
    for (const auto& [name, members] : member_patterns(tokens, 8)) {
      const Case c{.rule = {.groups = 8, .window = 40, .sinks = sinks},
                   .places = documents({tokens}),
                   .members = members,
                   .queries = tokens};
      EXPECT_GE(check_all(c, name), name == "some in no group" && sinks > 0 ? 2 : 3) << name;
    }
  }
}

TEST(GroupedPlan, HoldsForEveryMaskWindowDocumentAndChunk) {
  const auto check = [](const std::string& what, auto change) {
    Case c{.rule = {.groups = 4, .window = 20, .sinks = 3},
           .places = documents({300}),
           .members = sticky_sets(300, 4, 1, 9, 5),
           .queries = 300};
    change(c);
    check_all(c, what);
    c.members = random_sets(std::ssize(c.places), c.rule.groups, 2, 6);
    check_all(c, what + ", pairs");
  };
  check("window 1", [](Case& c) { c.rule.window = 1; });
  check("window over everything", [](Case& c) { c.rule.window = 1000; });
  check("documents", [](Case& c) { c.places = documents({1, 90, 1, 1, 130, 64, 13}); });
  check("gaps", [](Case& c) { c.places = documents({200, 100}, 3); });
  check("mask window", [](Case& c) { c.rule.mask.window = 60; });
  check("mask window and sinks", [](Case& c) { c.rule.mask = {.window = 60, .sinks = 2}; });
  check("mask window, documents", [](Case& c) {
    c.rule.mask.window = 50;
    c.places = documents({120, 3, 177});
  });
  check("narrow mask window", [](Case& c) { c.rule.mask = {.window = 9, .sinks = 1}; });
  check("mask as wide as the groups' window", [](Case& c) { c.rule.mask.window = 20; });
  check("strided", [](Case& c) {
    c.rule.mask = {.window = 5, .sparsity = MaskRule::Sparsity::strided, .stride = 7};
  });
  check("chunk", [](Case& c) { c.queries = 77; });
  check("chunk of documents", [](Case& c) {
    c.queries = 101;
    c.places = documents({150, 20, 130});
  });
  check("one query", [](Case& c) { c.queries = 1; });
  check("no query", [](Case& c) { c.queries = 0; });
  check("one token", [](Case& c) {
    c.places = documents({1});
    c.members = {1};
    c.queries = 1;
  });
}

// The tokens of a plan's slots, ascending.
std::vector<int32_t> slotted(const SlotColumns& slots) {
  std::vector<int32_t> tokens;
  std::ranges::copy_if(slots.token, std::back_inserter(tokens), [](int32_t n) { return n >= 0; });
  std::ranges::sort(tokens);
  return tokens;
}

// One group a token: whoever is far from somebody in his document has one slot, nobody else any.
TEST(GroupedPlan, OnlyFarTokensHaveSlots) {
  const auto check = [](const Case& c, const std::string& what) {
    std::vector<int32_t> keys, queries;
    const auto far = [&](int64_t i, int64_t j) {
      return c.places[i].document == c.places[j].document &&
             c.places[i].position - c.places[j].position >= c.rule.window;
    };
    const int64_t tokens = std::ssize(c.places), first = tokens - c.queries;
    for (int64_t n = 0; n < tokens; ++n) {
      bool as_key = false, as_query = false;
      for (int64_t i = first; i < tokens; ++i) as_key |= far(i, n);
      for (int64_t j = 0; n >= first && j < n; ++j) as_query |= far(n, j);
      if (as_key) keys.push_back(static_cast<int32_t>(n));
      if (as_query) queries.push_back(static_cast<int32_t>(n));
    }
    for (const GroupedKind kind : {GroupedKind::classes, GroupedKind::groups}) {
      const GroupedPlan plan =
          make_grouped_plan(c.rule, {c.places, c.members, c.queries}, kernels::kTileSizes, kind);
      EXPECT_EQ(slotted(plan.far.key), keys) << what;
      EXPECT_EQ(slotted(plan.far.query), queries) << what;
      EXPECT_EQ(plan.far.blocks.empty(), queries.empty()) << what;
    }
    check_all(c, what);
  };
  for (const int64_t tokens : {1, 39, 40, 41, 42, 79, 80, 81, 200}) {
    Case c{.rule = {.groups = 3, .window = 40},
           .places = documents({tokens}),
           .members = random_sets(tokens, 3, 1, 5),
           .queries = tokens};
    check(c, std::to_string(tokens) + " tokens");
    c.queries = std::min<int64_t>(tokens, 7);
    check(c, std::to_string(tokens) + " tokens, 7 queries");
    c.places = documents({tokens}, 3);
    check(c, std::to_string(tokens) + " tokens in steps of 3");
    c.places = documents({tokens / 2, tokens - tokens / 2});
    c.queries = tokens;
    check(c, std::to_string(tokens) + " tokens of two documents");
  }
}

TEST(GroupedPlan, TakesUpTo64Groups) {
  const Case c{.rule = {.groups = 64, .window = 16, .sinks = 2},
               .places = documents({260}),
               .members = sticky_sets(260, 64, 3, 4, 8),
               .queries = 260};
  EXPECT_GE(check_all(c, "64 groups"), 3);
}

TEST(GroupedPlan, ChoosesByPredictedCostAndSaysWhy) {
  const auto chosen = [](int64_t tokens, const std::vector<uint64_t>& members) {
    return make_grouped_plan({.groups = 8, .window = 128}, {documents({tokens}), members, tokens},
                             kernels::kTileSizes);
  };
  EXPECT_EQ(chosen(4096, random_sets(4096, 8, 1, 1)).kind, GroupedKind::classes);
  EXPECT_EQ(chosen(4096, random_sets(4096, 8, 5, 1)).kind, GroupedKind::dense);
  EXPECT_EQ(chosen(512, random_sets(512, 8, 3, 1)).kind, GroupedKind::block_sparse);
  const GroupedPlan plan = chosen(2048, sticky_sets(2048, 8, 1, 500, 1));
  EXPECT_NE(plan.reason.find("classes"), std::string::npos) << plan.reason;
}

TEST(GroupedPlan, CountsTheTilesItVisits) {
  const std::vector<uint64_t> members = sticky_sets(3000, 8, 1, 100, 1);
  const auto tiles = [&](GroupedKind kind, const std::vector<uint64_t>& sets) {
    return visited_tiles(make_grouped_plan(
        {.groups = 8, .window = 32}, {documents({3000}), sets, 3000}, kernels::kTileSizes, kind));
  };
  const std::vector<uint64_t> one(3000, 1);
  EXPECT_EQ(tiles(GroupedKind::dense, one), tiles(GroupedKind::block_sparse, one));
  EXPECT_LT(tiles(GroupedKind::block_sparse, members), tiles(GroupedKind::dense, one));
  EXPECT_LT(tiles(GroupedKind::classes, members), tiles(GroupedKind::block_sparse, members));
  EXPECT_LT(3 * tiles(GroupedKind::classes, members), tiles(GroupedKind::dense, one));
}

TEST(GroupedPlan, RefusesWhatItCannotPlanByName) {
  const std::vector<TokenPlace> places = documents({6});
  const std::vector<uint64_t> members(6, 1);
  const auto make = [&](const GroupedRule& rule, const std::vector<TokenPlace>& at,
                        const std::vector<uint64_t>& sets,
                        std::optional<GroupedKind> kind = std::nullopt) {
    return make_grouped_plan(rule, {at, sets, 6}, kernels::kTileSizes, kind);
  };
  EXPECT_ERROR(ConfigError, make({.groups = 65}, places, members), "groups", "64", "65");
  EXPECT_ERROR(ConfigError, make({.window = 0}, places, members), "window", "0");
  EXPECT_ERROR(ShapeError, make({}, places, {1, 1, 1}), "6 memberships", "3");
  EXPECT_ERROR(ShapeError, make({.groups = 4}, places, {1, 1, 16, 1, 1, 1}), "token 2", "group 4");
  EXPECT_ERROR(ShapeError, make({.mask = {.causal = false}}, places, members), "causal");
  std::vector<TokenPlace> mixed = places;
  std::swap(mixed[2], mixed[3]);
  EXPECT_ERROR(ShapeError, make({}, mixed, members), "ascend", "token 3");
  mixed = places;
  mixed[1].document = 3;
  EXPECT_ERROR(ShapeError, make({}, mixed, members), "neighbours", "token 2");
  EXPECT_ERROR(ConfigError, make({}, places, {1, 2, 1, 2, 1, 2}, GroupedKind::dense), "dense",
               "share no group");
  EXPECT_ERROR(ConfigError,
               make({.mask = {.window = 5}, .window = 9}, places, members, GroupedKind::classes),
               "classes", "window");
}

}  // namespace
}  // namespace fovea::grouped_plan_test
