// The keys of one query by a scan of bit masks.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "fovea/base/error.h"
#include "fovea/kernels/common/grouped_plan.h"

namespace fovea {

std::vector<int32_t> keys_seen_by_last(const GroupedRule& rule, std::span<const uint64_t> members,
                                       std::span<const int64_t> positions) {
  const int64_t keys = std::ssize(members);
  require<ShapeError>(positions.empty() || std::ssize(positions) == keys, "grouped plan",
                      "expected {} positions; got {}", keys, positions.size());
  if (keys == 0) return {};
  const auto position = [&](int64_t n) { return positions.empty() ? n : positions[n]; };
  const auto first_at = [&](int64_t from) {  // the first key at `from` or behind
    if (positions.empty()) return std::clamp<int64_t>(from, 0, keys);
    return std::ranges::lower_bound(positions, from) - positions.begin();
  };
  const int64_t query = position(keys - 1), sinks = first_at(rule.sinks);
  const int64_t near = first_at(query - rule.window + 1);
  const uint64_t own = members[keys - 1];
  std::vector<int32_t> seen(static_cast<size_t>(keys));
  int64_t count = 0;
  for (int64_t n = 0; n < std::min(sinks, near); ++n) seen[count++] = static_cast<int32_t>(n);
  for (int64_t n = std::min(sinks, near); n < near; ++n) {  // without a branch
    seen[count] = static_cast<int32_t>(n);
    count += (members[n] & own) != 0 ? 1 : 0;
  }
  for (int64_t n = near; n < keys; ++n) seen[count++] = static_cast<int32_t>(n);
  seen.resize(static_cast<size_t>(count));
  const MaskRule& mask = rule.mask;
  if (mask != MaskRule{}) {
    std::erase_if(seen, [&](int32_t n) {
      return !allowed(mask, {.position = query}, {.position = position(n)});
    });
  }
  return seen;
}

}  // namespace fovea
