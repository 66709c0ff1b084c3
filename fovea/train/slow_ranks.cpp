// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/slow_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace fovea {
namespace {

/// Ranks of a quiet cluster differ by some percent, rows of unequal length by less than this.
constexpr double kStandsOut = 1.5;
/// Seconds that are looked at together, at least: a hiccup of one step is no news.
constexpr double kLookedAt = 5.0;

}  // namespace

std::string SlowRanks::find(Communicator& ranks) {
  if (ranks.size() == 1) return "";
  std::vector<double> seconds(static_cast<size_t>(ranks.size()), 0.0);
  seconds[static_cast<size_t>(ranks.rank())] = seconds_;
  ranks.sum(seconds);
  const auto slowest = std::ranges::max_element(seconds);
  const int64_t rank = slowest - seconds.begin();
  const double most = *slowest;
  if (most < kLookedAt) return "";
  seconds_ = 0;
  // Of two ranks the other one is the measure, so the lower median.
  std::ranges::sort(seconds);
  const double median = seconds[(seconds.size() - 1) / 2];
  if (most < kStandsOut * median || !named_.insert(rank).second) return "";
  return fmt::format(
      "rank {} of {} takes {:.1f} times as long as the others, which wait for it: its cores are "
      "busy with something else, or slower",
      rank, ranks.size(), most / std::max(median, 1e-9));
}

}  // namespace fovea
