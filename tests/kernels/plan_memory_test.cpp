// The one allocation of a plan.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/plan_memory.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "fovea/kernels/common/grouped_plan.h"
#include "fovea/kernels/common/visits.h"
#include "tests/support/member_patterns.h"

namespace fovea {
namespace {

constexpr TileSizes kTiles{.queries = 64, .keys = 128, .tile = 32};

std::vector<TokenPlace> documents_of(int64_t tokens) {
  std::vector<TokenPlace> places;
  for (int64_t n = 0; n < tokens; ++n) places.push_back({.document = n / 90, .position = n % 90});
  return places;
}

bool inside(std::span<const std::byte> memory, const auto& array) {
  const std::span<const std::byte> bytes = std::as_bytes(array);
  return bytes.empty() || (bytes.data() >= memory.data() &&
                           bytes.data() + bytes.size() <= memory.data() + memory.size());
}

template <class Plan>
void expect_one_allocation(Plan plan) {
  size_t bytes = 0;
  plan.each_array([&](const auto& array) {
    EXPECT_TRUE(inside(plan.memory.bytes(), array));
    bytes += array.size_bytes();
  });
  EXPECT_GT(bytes, 0u);
  EXPECT_GE(plan.memory.bytes().size(), bytes);
  // Uploaded: the same numbers elsewhere.
  const std::vector<std::byte> copy(plan.memory.bytes().begin(), plan.memory.bytes().end());
  Plan moved = moved_to(copy.data(), plan);
  std::vector<std::vector<std::byte>> numbers;
  plan.each_array([&](const auto& array) {
    const auto all = std::as_bytes(array);
    numbers.emplace_back(all.begin(), all.end());
  });
  size_t n = 0;
  moved.each_array([&](const auto& array) {
    EXPECT_TRUE(inside(copy, array));
    EXPECT_TRUE(std::ranges::equal(std::as_bytes(array), numbers[n++]));
  });
}

TEST(PlanMemory, ArraysOfAPlanLieInOneAllocationThatCanBeCopiedElsewhere) {
  const std::vector<TokenPlace> places = documents_of(400);
  expect_one_allocation(make_visits({.window = 50, .sinks = 2}, places, places, kTiles));
  const std::vector<uint64_t> members = testing::random_sets(400, 8, 1, 3);
  for (const GroupedKind kind :
       {GroupedKind::block_sparse, GroupedKind::classes, GroupedKind::groups}) {
    const GroupedRule rule{.groups = 8, .window = 20, .sinks = 2};
    expect_one_allocation(make_grouped_plan(rule, {places, members, 400}, kTiles, kind));
  }
}

TEST(PlanMemory, CopiesOfAPlanOutliveIt) {
  const std::vector<TokenPlace> places = documents_of(200);
  Visits copy;
  {
    const Visits plan = make_visits({}, places, places, kTiles);
    copy = plan;
  }
  EXPECT_EQ(copy.key.position[190], 10);
}

}  // namespace
}  // namespace fovea
