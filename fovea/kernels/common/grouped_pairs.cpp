// Counting kept pairs: two pointers a document, and counts of the sets that became distant.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/grouped_pairs.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "fovea/base/error.h"

namespace fovea {
namespace {

// Tokens seen so far by their set of groups.
class Sets {
 public:
  explicit Sets(std::span<const uint64_t> members) {
    std::vector<uint64_t> distinct(members.begin(), members.end());
    std::ranges::sort(distinct);
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    int most = 0;
    for (const uint64_t set : distinct) most = std::max(most, std::popcount(set));
    constexpr int64_t kLookUp = 20;  // sums that take as long as finding a subset
    by_subset_ = most < 20 && (kLookUp << most) < std::ssize(distinct);
    if (by_subset_) return;
    sets_ = std::move(distinct);
    counts_.assign(sets_.size(), 0);
  }

  void clear() {
    std::ranges::fill(counts_, 0);
    subsets_.clear();
  }

  void add(uint64_t set) {
    if (!by_subset_) {
      ++counts_[std::ranges::lower_bound(sets_, set) - sets_.begin()];
      return;
    }
    for (uint64_t part = set; part != 0; part = (part - 1) & set) ++subsets_[part];
  }

  // Tokens that share a group with `set`: by inclusion and exclusion over its subsets.
  int64_t sharing(uint64_t set) const {
    int64_t count = 0;
    if (!by_subset_) {
      for (size_t n = 0; n < sets_.size(); ++n) count += (sets_[n] & set) != 0 ? counts_[n] : 0;
      return count;
    }
    for (uint64_t part = set; part != 0; part = (part - 1) & set) {
      const auto found = subsets_.find(part);
      if (found == subsets_.end()) continue;
      count += std::popcount(part) % 2 == 1 ? found->second : -found->second;
    }
    return count;
  }

 private:
  bool by_subset_ = false;
  std::vector<uint64_t> sets_;  // ascending
  std::vector<int64_t> counts_;
  std::unordered_map<uint64_t, int64_t> subsets_;  // tokens whose set holds a subset
};

}  // namespace

PairCount& PairCount::operator+=(const PairCount& other) {
  pairs += other.pairs;
  distant += other.distant;
  distant_shared += other.distant_shared;
  return *this;
}

PairCount count_pairs(int64_t window, int64_t sinks, std::span<const TokenPlace> places,
                      std::span<const uint64_t> members) {
  require<ShapeError>(places.size() == members.size(), "pairs kept",
                      "expected {} memberships; got {}", places.size(), members.size());
  const auto before = [&](size_t a, size_t b) {
    return std::tie(places[a].document, places[a].position) <
           std::tie(places[b].document, places[b].position);
  };
  std::vector<size_t> order(places.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (!std::ranges::is_sorted(order, before)) std::ranges::sort(order, before);
  PairCount count;
  Sets distant(members);
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    const int64_t document = places[order[begin]].document;
    const auto position = [&](size_t n) { return places[order[n]].position; };
    while (end < order.size() && places[order[end]].document == document) ++end;
    size_t first = begin;  // the first key that is no sink
    while (first < end && position(first) < sinks) ++first;
    distant.clear();
    size_t seen = begin, far = first;  // keys not later; keys that are distant
    for (size_t n = begin; n < end; ++n) {
      while (seen < end && position(seen) <= position(n)) ++seen;
      for (; far < end && position(n) - position(far) >= window; ++far)
        distant.add(members[order[far]]);
      count.pairs += static_cast<int64_t>(seen - begin);
      count.distant += static_cast<int64_t>(far - first);
      count.distant_shared += distant.sharing(members[order[n]]);
    }
  }
  return count;
}

}  // namespace fovea
