// Places of tokens on the host: which keys some queries can reach.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/places.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/attention_inputs.h"

namespace fovea::places_test {
namespace {

using namespace fovea::testing;

constexpr int64_t kTokens = 40;

std::vector<MaskRule> rules() {
  MaskRule strided{.window = 2}, fixed;
  strided.sparsity = MaskRule::Sparsity::strided, strided.stride = 6;
  fixed.sparsity = MaskRule::Sparsity::fixed, fixed.block = 8, fixed.summary = 2;
  return {{},
          {.causal = false},
          {.window = 5},
          {.window = 5, .sinks = 2},
          {.causal = false, .window = 4},
          strided,
          fixed};
}

TEST(ReachableKeys, HoldEveryKeyThatSomeRowSees) {
  for (const AttentionContext& context :
       {AttentionContext{}, packed_context({13, 20, 7}), packed_context({kTokens})}) {
    const Places places = resolve_places(context, kTokens, kTokens, at::kCPU);
    for (const MaskRule& rule : rules()) {
      const at::Tensor allowed = allowed_mask(rule, places);  // [1, 1, t, s]
      for (const auto& [begin, rows] : {std::pair<int64_t, int64_t>{0, 40}, {0, 8}, {15, 10}}) {
        const auto [first, count] = reachable_keys(rule, places, begin, rows);
        const at::Tensor seen = allowed.narrow(2, begin, rows).flatten(0, 2).any(0);
        EXPECT_EQ(seen.sum().item<int64_t>(), seen.narrow(0, first, count).sum().item<int64_t>())
            << "rows from " << begin;
        if (rule.sparsity != MaskRule::Sparsity::full || rule.sinks > 0) continue;
        EXPECT_TRUE(seen[first].item<bool>() && seen[first + count - 1].item<bool>())
            << "no key too many, rows from " << begin;
      }
    }
  }
}

TEST(ReachableKeys, AreNoneOfAnotherDocument) {
  const Places places = resolve_places(packed_context({10, 10}), 2 * 10, 2 * 10, at::kCPU);
  EXPECT_EQ(reachable_keys({}, places, 12, 4), (std::pair<int64_t, int64_t>{10, 6}));
}

TEST(LastKeys, AreTheQueriesOfATextAndOfItsEndButNotOfAnother) {
  EXPECT_TRUE(are_last_keys(resolve_places({}, 4, 9, at::kCPU)));
  EXPECT_TRUE(are_last_keys(resolve_places(packed_context({4, 5}), 9, 9, at::kCPU)));
  AttentionContext moved;
  moved.query_positions_bt = at::arange(3, 7);
  EXPECT_FALSE(are_last_keys(resolve_places(moved, 4, 9, at::kCPU)));
}

}  // namespace
}  // namespace fovea::places_test
