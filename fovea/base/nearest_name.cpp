// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/base/nearest_name.h"

#include <algorithm>
#include <vector>

namespace fovea {
namespace {

constexpr size_t kLongestName = 200;  // nobody mistypes a longer one

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  const size_t columns = b.size() + 1;
  std::vector<int> before(columns), last(columns), now(columns);
  for (size_t j = 0; j < columns; ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = static_cast<int>(i);
    for (size_t j = 1; j < columns; ++j) {
      const int change = a[i - 1] == b[j - 1] ? 0 : 1;
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        now[j] = std::min(now[j], before[j - 2] + 1);
      }
    }
    std::swap(before, last);
    std::swap(last, now);
  }
  return last[columns - 1];
}

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  // A third of the letters may differ, and always two: "heds" finds "heads", "x" finds nothing
  // long.
  const int limit = std::max(2, static_cast<int>(name.size()) / 3);
  std::string best;
  int best_distance = limit + 1;
  if (name.size() > kLongestName) return best;
  for (const std::string& candidate : candidates) {
    // What differs more in length alone is not near; comparing costs the product of the lengths.
    const size_t longer = std::max(name.size(), candidate.size());
    if (longer - std::min(name.size(), candidate.size()) > static_cast<size_t>(limit)) continue;
    const int distance = edit_distance(name, candidate);
    if (distance < best_distance && distance < static_cast<int>(candidate.size())) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> candidates) {
  const std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? "" : " (did you mean '" + nearest + "'?)";
}

}  // namespace fovea
