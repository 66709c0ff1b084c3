// Plans of given block pairs.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/block_plan.h"

#include <algorithm>
#include <unordered_map>

#include "fovea/kernels/common/listed_plan.h"

namespace fovea {

std::vector<std::vector<int64_t>> seen_blocks(const BlockRule& rule) {
  std::vector<std::vector<int64_t>> seen;
  for (size_t n = 0; n + 1 < rule.pairs.size(); n += 2) {
    const int64_t query = rule.pairs[n], key = rule.pairs[n + 1];
    if (key > query) continue;
    if (query >= std::ssize(seen)) seen.resize(static_cast<size_t>(query + 1));
    seen[static_cast<size_t>(query)].push_back(key);
  }
  for (std::vector<int64_t>& keys : seen) {
    std::ranges::sort(keys);
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  }
  return seen;
}

GroupedPlan make_block_plan(const BlockRule& rule, std::span<const TokenPlace> places,
                            int64_t queries, const TileSizes& tiles) {
  const std::vector<std::vector<int64_t>> seen = seen_blocks(rule);
  std::vector<int32_t> list_of;
  IntRowList visits;
  std::unordered_map<int64_t, int32_t> lists;  // of the document's blocks so far
  int64_t block = -1;
  for (size_t n = 0; n < places.size(); ++n) {
    const bool starts = n == 0 || places[n].document != places[n - 1].document;
    if (starts) lists.clear();
    if (starts || places[n].position / rule.size != block) {
      block = places[n].position / rule.size;
      const auto number = static_cast<int32_t>(visits.begin.size()) - 1;
      lists[block] = number;
      if (block >= 0 && block < std::ssize(seen)) {
        for (const int64_t key : seen[static_cast<size_t>(block)]) {
          if (const auto found = lists.find(key); found != lists.end())
            visits.values.push_back(found->second);
        }
      }
      visits.end_row();
    }
    list_of.push_back(static_cast<int32_t>(visits.begin.size()) - 2);
  }
  return make_listed_plan({.places = places,
                           .query_list = std::span(list_of).last(static_cast<size_t>(queries)),
                           .key_list = list_of,
                           .visits = visits.view()},
                          tiles);
}

}  // namespace fovea
