// Pairs that hard Focus keeps, counted without looking at pairs (spec 9.9, 11.4).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/grouped_pairs.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/expect_error.h"
#include "tests/support/member_patterns.h"

namespace fovea::grouped_pairs_test {
namespace {

using namespace fovea::testing;

PairCount by_looking(int64_t window, int64_t sinks, const std::vector<TokenPlace>& places,
                     const std::vector<uint64_t>& members) {
  PairCount count;
  for (size_t i = 0; i < places.size(); ++i) {
    for (size_t j = 0; j < places.size(); ++j) {
      const TokenPlace &query = places[i], &key = places[j];
      if (query.document != key.document || key.position > query.position) continue;
      ++count.pairs;
      if (query.position - key.position < window || key.position < sinks) continue;
      ++count.distant;
      count.distant_shared += (members[i] & members[j]) != 0 ? 1 : 0;
    }
  }
  return count;
}

void expect_same(int64_t window, int64_t sinks, const std::vector<TokenPlace>& places,
                 const std::vector<uint64_t>& members, const std::string& what) {
  const PairCount got = count_pairs(window, sinks, places, members),
                  truth = by_looking(window, sinks, places, members);
  EXPECT_EQ(got.pairs, truth.pairs) << what;
  EXPECT_EQ(got.distant, truth.distant) << what;
  EXPECT_EQ(got.distant_shared, truth.distant_shared) << what;
}

std::vector<TokenPlace> packed(std::initializer_list<int64_t> lengths, int64_t step = 1) {
  std::vector<TokenPlace> places;
  int64_t document = 9;
  for (const int64_t length : lengths) {
    for (int64_t n = 0; n < length; ++n) places.push_back({document, n * step});
    --document;
  }
  return places;
}

TEST(PairCount, EqualsLookingAtEveryPairForEveryPatternWindowSinkAndDocument) {
  for (const auto& [name, members] : member_patterns(300, 8)) {
    for (const int64_t window : {1, 40, 1000}) {
      for (const int64_t sinks : {0, 4, 60}) {
        expect_same(window, sinks, packed({300}), members, name);
        expect_same(window, sinks, packed({1, 120, 1, 178}), members, name + " packed");
        expect_same(window, sinks, packed({200, 100}, 3), members, name + " with gaps");
      }
    }
  }
}

// Above 64 different sets of few groups, subsets are counted instead of sets.
TEST(PairCount, HoldsForManySetsOfUpTo64GroupsAndTokensInAnyOrder) {
  for (const int64_t top_k : {1, 2, 3, 9}) {
    const std::vector<uint64_t> members = random_sets(700, 64, top_k, 3);
    std::vector<TokenPlace> places = packed({250, 450});
    expect_same(20, 2, places, members, "64 groups");
    std::ranges::reverse(places);
    expect_same(20, 2, places, members, "reversed");
    for (TokenPlace& place : places) place.position /= 2;  // two tokens at every position
    expect_same(20, 2, places, members, "shared positions");
  }
}

TEST(PairCount, NeedsAMembershipForEveryToken) {
  const std::vector<uint64_t> one{1};
  EXPECT_ERROR(ShapeError, count_pairs(1, 0, packed({2}), one), "pairs kept", "2", "1");
}

}  // namespace
}  // namespace fovea::grouped_pairs_test
