// The number of visible keys without a look at each equals the number with one.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/visible_keys.h"

#include <gtest/gtest.h>

#include <vector>

namespace fovea::visible_keys_test {
namespace {

std::vector<MaskRule> rules() {
  using Sparsity = MaskRule::Sparsity;
  std::vector<MaskRule> out;
  for (const bool causal : {true, false}) {
    for (const int64_t sinks : {0, 1, 3, 50}) {
      for (const int64_t window : {0, 1, 4, 100}) {
        out.push_back({.causal = causal, .window = window, .sinks = sinks});
        for (const int64_t stride : {1, 3, 7, 64})
          out.push_back({.causal = causal,
                         .window = window,
                         .sinks = sinks,
                         .sparsity = Sparsity::strided,
                         .stride = stride});
      }
      for (const auto& [block, summary] :
           {std::pair{1, 0}, {1, 1}, {4, 0}, {4, 1}, {5, 5}, {64, 3}})
        out.push_back({.causal = causal,
                       .sinks = sinks,
                       .sparsity = Sparsity::fixed,
                       .block = block,
                       .summary = summary});
    }
  }
  return out;
}

TEST(VisibleKeys, EqualTheKeysThatTheRelationAllows) {
  for (const MaskRule& rule : rules()) {
    for (const int64_t length : {1, 2, 19, 33}) {
      for (int64_t i = 0; i < length; ++i) {
        int64_t seen = 0;
        for (int64_t j = 0; j < length; ++j) seen += allowed(rule, {0, i}, {0, j}) ? 1 : 0;
        ASSERT_EQ(visible_keys(rule, i, length), seen)
            << "query " << i << " of " << length << ", causal " << rule.causal << ", window "
            << rule.window << ", sinks " << rule.sinks << ", stride " << rule.stride << ", block "
            << rule.block << ", summary " << rule.summary;
      }
    }
  }
}

TEST(VisibleKeys, AreKnownAtAnyLength) {
  constexpr int64_t length = int64_t{1} << 31;
  EXPECT_EQ(visible_keys(MaskRule{}, length - 1, length), length);
  EXPECT_EQ(visible_keys(MaskRule{.window = length}, length - 1, length), length);
  EXPECT_EQ(visible_keys(MaskRule{.window = 4, .sinks = 2}, length - 1, length), 6);
}

}  // namespace
}  // namespace fovea::visible_keys_test
