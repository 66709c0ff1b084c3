// The keys of one query by a scan of bit masks.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "fovea/base/error.h"
#include "fovea/kernels/cpu/grouped/grouped_driver.h"

namespace fovea::kernels {
namespace {

// Appends the far keys [begin, end) that meet `query_members`, a few at a time: most keys meet
// nobody, and a list as long as the cache would be fresh memory in every call.
void scan(std::span<const uint64_t> members, int64_t begin, int64_t end, uint64_t query_members,
          std::vector<int32_t>& seen) {
  constexpr int64_t kAtOnce = 2048;
  const AttentionTable<float>& table = attention_table<float>();
  std::array<int32_t, kAtOnce + 8> found;
  for (; begin < end; begin += kAtOnce) {
    const int64_t count = table.scan({.members = members.data(),
                                      .begin = begin,
                                      .end = std::min(begin + kAtOnce, end),
                                      .query_members = query_members,
                                      .out = found.data()});
    seen.insert(seen.end(), found.begin(), found.begin() + count);
  }
}

}  // namespace

void run(const KeysOfLast& problem) {
  const GroupedRule& rule = problem.rule;
  const std::span<const uint64_t> members = problem.members;
  const std::span<const int64_t> positions = problem.positions;
  const int64_t keys = std::ssize(members);
  require<ShapeError>(positions.empty() || std::ssize(positions) == keys, "grouped attention",
                      "expected {} positions; got {}", keys, positions.size());
  if (keys == 0) return;
  const auto position = [&](int64_t n) { return positions.empty() ? n : positions[n]; };
  const auto first_at = [&](int64_t from) {  // the first key at `from` or behind
    if (positions.empty()) return std::clamp<int64_t>(from, 0, keys);
    return std::ranges::lower_bound(positions, from) - positions.begin();
  };
  const int64_t query = position(keys - 1), near = first_at(query - rule.window + 1);
  const int64_t sinks = std::min(first_at(rule.sinks), near);
  std::vector<int32_t>& seen = *problem.seen;
  const int64_t before = std::ssize(seen);
  for (int64_t n = 0; n < sinks; ++n) seen.push_back(static_cast<int32_t>(n));
  scan(members, sinks, near, members[keys - 1], seen);
  for (int64_t n = near; n < keys; ++n) seen.push_back(static_cast<int32_t>(n));
  if (rule.mask == MaskRule{}) return;
  seen.erase(std::remove_if(seen.begin() + before, seen.end(),
                            [&](int32_t n) {
                              return !allowed(rule.mask, {.position = query},
                                              {.position = position(n)});
                            }),
             seen.end());
}

}  // namespace fovea::kernels
