// Building plans of given lists.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/listed_plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/kernels/common/grouped_far.h"

namespace fovea {
namespace {

constexpr std::string_view kWhere = "listed plan";

void check(const ListedTokens& tokens) {
  const int64_t keys = std::ssize(tokens.places), lists = tokens.visits.rows();
  require<ShapeError>(std::ssize(tokens.key_list) == keys && std::ssize(tokens.query_list) <= keys,
                      kWhere,
                      "expected the lists of {} keys and of at most as many queries; got {} and {}",
                      keys, tokens.key_list.size(), tokens.query_list.size());
  for (const std::span<const int32_t> numbers : {tokens.query_list, tokens.key_list}) {
    for (const int32_t n : numbers)
      require<ShapeError>(n >= -1 && n < lists, kWhere,
                          "lists are numbered 0 to {}, or -1 for none; got {}", lists - 1, n);
  }
  for (int64_t c = 0; c < lists; ++c) {
    int32_t last = -1;
    for (const int32_t n : tokens.visits.of(c)) {
      require<ShapeError>(n > last && n < lists, kWhere,
                          "a list visits lists 0 to {}, ascending; list {} visits {} after {}",
                          lists - 1, c, n, last);
      last = n;
    }
  }
  if (tokens.keep == 0) return;
  for (int64_t c = 0; c < lists; ++c) {
    const auto visited = tokens.visits.of(c);
    require<ShapeError>(visited.size() == 1 && visited[0] == c, kWhere,
                        "with keep {} a list visits itself alone; list {} visits {} lists",
                        tokens.keep, c, visited.size());
  }
}

// Tokens of every list, ascending; index 0 is token `first`.
std::vector<std::vector<int32_t>> by_list(std::span<const int32_t> list_of, int64_t lists,
                                          int64_t first) {
  std::vector<std::vector<int32_t>> out(static_cast<size_t>(lists));
  for (size_t n = 0; n < list_of.size(); ++n) {
    if (list_of[n] >= 0) out[list_of[n]].push_back(static_cast<int32_t>(first + n));
  }
  return out;
}

// Keys stand at their rank in list and document, queries at the rank of the last key that is not
// later, so that "the last `keep` keys" is a window.
void set_ranks(GroupedPlan& plan) {
  const TokenColumns& at = plan.key;
  FarPairs& far = plan.far;
  const auto copy = [](std::span<const int32_t> x) {
    return std::vector<int32_t>(x.begin(), x.end());
  };
  std::vector<int32_t> of_keys = copy(far.key.places.position),
                       of_queries = copy(far.query.places.position);
  for (const SlotList& list : far.lists) {
    int32_t* const rank = of_keys.data() + list.key_begin;
    const int32_t* const keys = far.key.token.data() + list.key_begin;
    for (int64_t n = 0; n < list.keys; ++n)
      rank[n] = n > 0 && at.document[keys[n]] == at.document[keys[n - 1]] ? rank[n - 1] + 1 : 0;
    int64_t seen = 0;
    for (int64_t n = list.query_begin; n < list.query_begin + list.queries; ++n) {
      const int32_t query = far.query.token[n];
      while (seen < list.keys && keys[seen] <= query) ++seen;
      const bool any = seen > 0 && at.document[keys[seen - 1]] == at.document[query];
      of_queries[n] = any ? rank[seen - 1] : -1;
    }
  }
  far.key.places.position = plan.memory.keep(std::move(of_keys));
  far.query.places.position = plan.memory.keep(std::move(of_queries));
}

}  // namespace

GroupedPlan make_listed_plan(const ListedTokens& tokens, const TileSizes& sizes) {
  check(tokens);
  GroupedPlan plan;
  plan.sizes = sizes;
  plan.kind = GroupedKind::lists;
  plan.reason = "given lists";
  plan.rule = {.groups = 1, .window = 1};
  plan.keys = std::ssize(tokens.places);
  plan.queries = std::ssize(tokens.query_list);
  if (const auto why = why_not_grouped_plans(plan.rule, tokens.places))
    fail<ShapeError>(kWhere, "{}", *why);
  set_token_places(plan, tokens.places);
  const int64_t lists = tokens.visits.rows();
  plan.far = listed_pairs(plan, by_list(tokens.key_list, lists, 0),
                          by_list(tokens.query_list, lists, plan.first_query()), tokens.visits,
                          plan.memory);
  if (tokens.keep > 0) {
    plan.far.rule.limited = true;
    plan.far.rule.reach =
        static_cast<int32_t>(std::min<int64_t>(tokens.keep, std::max<int64_t>(plan.keys, 1)));
    set_ranks(plan);
  }
  plan.memory.pack(plan);
  return plan;
}

}  // namespace fovea
