// What each plan of hard Focus would cost.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/grouped_cost.h"

#include <algorithm>
#include <array>
#include <bit>

namespace fovea {
namespace {

// In scores a query and head, fitted on one machine (docs/kernels/grouped.md): a tile whose pairs
// are compared, a query's second pass, a key's second packing, a score among slots.
constexpr double kCompared = 1.07, kPass = 50.0, kSlot = 12.0, kFar = 1.1;
constexpr double kEdge = 0.85;  // a tile across a bound of positions: parts of it are skipped

int64_t far_keys(const GroupedPlan& plan, int64_t query) {
  return plan.near_begin[query] - plan.document_begin(query);
}

double scores_of(const std::vector<TileRange>& ranges, int64_t rows, double partial) {
  double scores = 0.0;
  for (const TileRange& range : ranges)
    scores += static_cast<double>(range.key_end - range.key_begin) *
              (range.kind == TileRange::Kind::full ? 1.0 : partial);
  return scores * static_cast<double>(rows);
}

// Mean cost a row over evenly spread blocks; `add` gives the cost and the rows of block n.
template <class Add>
double mean_cost(int64_t blocks, const Add& add) {
  constexpr int64_t kSample = 32;
  const int64_t step = std::max<int64_t>(1, blocks / kSample);
  double cost = 0.0, rows = 0.0;
  for (int64_t n = step / 2; n < blocks; n += step) {
    const auto [scores, queries] = add(n);
    cost += scores;
    rows += static_cast<double>(queries);
  }
  return rows > 0.0 ? cost / rows : 0.0;
}

// A row of the pass in the tokens' order.
double order_cost(const GroupedPlan& plan, double partial) {
  std::vector<TileRange> ranges;
  const int64_t block = plan.sizes.queries;
  return mean_cost((plan.queries + block - 1) / block, [&](int64_t n) {
    const int64_t begin = n * block, rows = std::min(block, plan.queries - begin);
    near_tile_ranges(plan, begin, rows, ranges);
    return std::pair{scores_of(ranges, rows, partial), rows};
  });
}

// A row of the far pass.
double far_cost(const GroupedPlan& plan) {
  std::vector<TileRange> ranges;
  return mean_cost(std::ssize(plan.far.blocks), [&](int64_t n) {
    const SlotBlock& block = plan.far.blocks[n];
    far_tile_ranges(plan, block, ranges);
    return std::pair{scores_of(ranges, block.rows, kEdge), block.rows};
  });
}

}  // namespace

double tiles_cost(const GroupedPlan& plan) { return order_cost(plan, kCompared); }
double near_cost(const GroupedPlan& plan) { return order_cost(plan, kEdge); }

double classes_cost(const GroupedPlan& plan) {
  const auto queries = static_cast<double>(plan.queries);
  double rows = 0.0;
  for (const SlotList& list : plan.far.lists) rows += static_cast<double>(list.queries);
  return (kFar * far_cost(plan) + kPass) * rows / queries +
         kSlot * static_cast<double>(plan.far.key.token.size()) / queries;
}

double least_classes_cost(const GroupedPlan& plan, const MemberSets& sets) {
  constexpr double kEnds = 16.0;     // of a list: half a tile
  constexpr double kUnevenly = 0.8;  // far pairs may share less than all pairs do
  std::vector<double> sizes(sets.sets.size(), 0.0);
  for (const int32_t set : sets.of_token) ++sizes[set];
  double pairs = 0.0, ends = 0.0, far = 0.0;
  for (size_t a = 0; a < sizes.size(); ++a) {
    for (size_t b = 0; b < sizes.size(); ++b) {
      if ((sets.sets[a] & sets.sets[b]) == 0) continue;
      pairs += sizes[a] * sizes[b];
      ends += sizes[a] * std::min(kEnds, sizes[b] / 2.0);
    }
  }
  const auto keys = static_cast<double>(plan.keys), queries = static_cast<double>(plan.queries);
  for (int64_t n = plan.first_query(); n < plan.keys; ++n)
    far += static_cast<double>(far_keys(plan, n));
  return kUnevenly * pairs / (keys * keys) * far / queries + ends / keys;
}

double groups_cost(const GroupedPlan& plan, std::span<const uint64_t> members) {
  constexpr double kEnds = 50.0;  // half a block's span and half a tile
  std::array<double, 64> seen{};
  double scores = 0.0, lists = 0.0;
  for (int64_t n = 0; n < plan.keys; ++n) {
    if (plan.document_begin(n) == n) seen.fill(0.0);
    if (n > plan.document_begin(n)) {  // keys that became far since the query before
      for (int32_t j = plan.near_begin[n - 1]; j < plan.near_begin[n]; ++j) {
        for (uint64_t set = members[j]; set != 0; set &= set - 1) ++seen[std::countr_zero(set)];
      }
    }
    if (n < plan.first_query() || far_keys(plan, n) == 0) continue;
    for (uint64_t set = members[n]; set != 0; set &= set - 1) {
      scores += seen[std::countr_zero(set)];
      ++lists;
    }
  }
  const double queries = static_cast<double>(std::max<int64_t>(plan.queries, 1));
  return kCompared * scores / queries + (kEnds + kPass + kSlot) * lists / queries;
}

}  // namespace fovea
