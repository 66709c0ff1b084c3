// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/mixing/mixing_plan.h"

#include <algorithm>
#include <numeric>

namespace fovea::kernels {
namespace {

// Marks the blocks of keys that queries [begin, end) see.
void mark_seen(const Visits& visits, int64_t begin, int64_t end, std::vector<char>& blocks) {
  const int64_t rows = visits.by_query.query_block;
  for (int64_t b = begin / rows; b * rows < end; ++b) {
    for (const TileRange& range : visits.by_query.of_block(b)) {
      for (int64_t n = range.key_begin / kStepKeys; n * kStepKeys < range.key_end; ++n)
        blocks[static_cast<size_t>(n)] = 1;
    }
  }
}

std::vector<int32_t> first_rows(const Visits& visits) {
  const std::span<const int32_t> label = visits.query.document;
  std::vector<int32_t> first(static_cast<size_t>(visits.queries), 0);
  for (size_t i = 1; i < first.size(); ++i)
    first[i] = label[i] == label[i - 1] ? first[i - 1] : static_cast<int32_t>(i);
  if (first.empty() || first.back() == 0) first.clear();
  return first;
}

}  // namespace

StripPlan make_strip_plan(const Visits& visits, int64_t strip_rows, int64_t earlier, bool lags) {
  StripPlan plan;
  plan.blocks = (visits.keys + kStepKeys - 1) / kStepKeys + 1;
  plan.first_row = first_rows(visits);
  plan.begin.push_back(0);
  std::vector<char> seen;
  for (int64_t row = 0; row < visits.queries; row += strip_rows) {
    seen.assign(static_cast<size_t>(plan.blocks), 0);
    mark_seen(visits, std::max<int64_t>(row - earlier, 0),
              std::min(row + strip_rows, visits.queries), seen);
    for (int64_t n = plan.blocks - 1; lags && n > 0; --n)
      seen[static_cast<size_t>(n)] |= seen[static_cast<size_t>(n - 1)];
    for (int64_t n = 0; n < plan.blocks; ++n)
      if (seen[static_cast<size_t>(n)] != 0) plan.steps.push_back(static_cast<int32_t>(n));
    plan.begin.push_back(std::ssize(plan.steps));
    plan.most = std::max(plan.most, plan.begin.back() - plan.begin[plan.begin.size() - 2]);
  }
  return plan;
}

std::vector<int64_t> even_ranges(const StripPlan& plan, int64_t parts) {
  std::vector<int64_t> borders(static_cast<size_t>(parts + 1), plan.strips());
  borders[0] = 0;
  for (int64_t n = 1; n < parts; ++n) {
    const int64_t steps = plan.begin.back() * n / parts;
    const auto at = std::ranges::lower_bound(plan.begin, steps);
    borders[static_cast<size_t>(n)] = std::clamp<int64_t>(
        at - plan.begin.begin(), borders[static_cast<size_t>(n - 1)], plan.strips());
  }
  return borders;
}

}  // namespace fovea::kernels
