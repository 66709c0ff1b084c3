// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "pairs.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <span>

#include "fovea/kernels/common/block_plan.h"

namespace fovea::python {
namespace {

// Places of the tokens of batch row b; `first` is the position of token 0 where none are given.
std::vector<TokenPlace> places(const std::optional<Tensor>& positions,
                               const std::optional<Tensor>& documents, int64_t b, int64_t tokens,
                               int64_t first) {
  const auto row = [&](const std::optional<Tensor>& x) {
    return x ? static_cast<const int64_t*>(x->const_data_ptr()) + (x->size(0) == 1 ? 0 : b * tokens)
             : nullptr;
  };
  const int64_t *const position = row(positions), *const document = row(documents);
  std::vector<TokenPlace> all(static_cast<size_t>(tokens));
  for (int64_t n = 0; n < tokens; ++n)
    all[n] = {.document = document != nullptr ? document[n] : 0,
              .position = position != nullptr ? position[n] : first + n};
  return all;
}

// Whether all rows of the batch have the places of the first.
bool one_row_of_places(const Call& call) {
  for (int n = kQueryPositions; n <= kKeyDocuments; ++n)
    if (call.slots[n] && call.slots[n]->size(0) != 1) return false;
  return true;
}

struct RowPlaces {
  std::vector<TokenPlace> queries, keys;
};

RowPlaces row_places(const Call& call, int64_t b) {
  const int64_t queries = call.q.size(2), keys = call.k.size(2);
  return {places(call[kQueryPositions], call[kQueryDocuments], b, queries, keys - queries),
          places(call[kKeyPositions], call[kKeyDocuments], b, keys, 0)};
}

std::vector<Visits> visits_of(const Call& call, TileSizes tiles) {
  std::vector<Visits> all;
  for (int64_t b = 0; b < (one_row_of_places(call) ? 1 : call.q.size(0)); ++b) {
    const RowPlaces row = row_places(call, b);
    all.push_back(make_visits(mask_rule(call), row.queries, row.keys, tiles));
  }
  return all;
}

bool are_last_keys(const RowPlaces& row) {
  const size_t first = row.keys.size() - row.queries.size();
  for (size_t n = 0; n < row.queries.size(); ++n)
    if (row.queries[n].position != row.keys[first + n].position ||
        row.queries[n].document != row.keys[first + n].document)
      return false;
  return true;
}

// Plans of the rows of the batch, for hard Focus and block pairs; none where a kernel compares
// memberships pair by pair instead.
std::vector<GroupedPlan> grouped_plans(const Call& call) {
  std::vector<GroupedPlan> all;
  const bool blocks = call[kBlockPairs].has_value(), hard = call[kMembers].has_value();
  if (!blocks && (!hard || call.joins_pairs() || call.has_bias() || call.dropout > 0.0)) return all;
  const TileSizes tiles = kernels::cpu().tile_sizes();
  const int64_t queries = call.q.size(2), keys = call.k.size(2);
  const GroupedRule rule{.mask = mask_rule(call),
                         .groups = call.groups,
                         .window = call.near,
                         .sinks = call.near_sinks};
  RowPlaces row;
  for (int64_t b = 0; b < (blocks && one_row_of_places(call) ? 1 : call.q.size(0)); ++b) {
    if (b == 0 || !one_row_of_places(call)) {
      row = row_places(call, b);
      const bool fits = are_last_keys(row) && !why_not_grouped_plans(rule, row.keys);
      if (!fits && !blocks) return {};
      expect(fits,
             "block_pairs need queries that are the last keys, documents that are runs, and "
             "ascending positions");
    }
    if (blocks) {
      const Tensor& pairs = *call[kBlockPairs];
      const std::span<const int64_t> numbers(static_cast<const int64_t*>(pairs.const_data_ptr()),
                                             static_cast<size_t>(pairs.numel()));
      all.push_back(
          make_block_plan({.size = call.block_size, .pairs = numbers}, row.keys, queries, tiles));
    } else {
      const auto* bits = static_cast<const uint64_t*>(call[kMembers]->const_data_ptr());
      all.push_back(make_grouped_plan(
          rule, {row.keys, std::span(bits + b * keys, static_cast<size_t>(keys)), queries}, tiles));
    }
  }
  return all;
}

// Runs of keys of one document at consecutive positions; nothing where a document or the order of
// the keys would have to be compared pair by pair.
std::optional<std::vector<KeyRange>> runs_of(const RowPlaces& row) {
  const int64_t document = row.queries.front().document;
  for (const TokenPlace& query : row.queries)
    if (query.document != document) return std::nullopt;
  std::vector<KeyRange> runs;
  int64_t last = -1;
  for (int64_t j = 0; j < std::ssize(row.keys); ++j) {
    const TokenPlace& key = row.keys[j];
    if (key.document != document) continue;
    if (!runs.empty() && key.position <= last) return std::nullopt;
    const int64_t shift = key.position - j;
    if (!runs.empty() && runs.back().end == j && runs.back().shift == shift)
      ++runs.back().end;
    else
      runs.push_back({.begin = j, .end = j + 1, .shift = shift});
    last = key.position;
  }
  return runs;
}

// Ranges of keys for every query, where the kernel for a few of them computes the call; else none.
std::vector<RowVisits> few_rows(const Call& call) {
  const int64_t batch = call.q.size(0), queries = call.q.size(2), keys = call.k.size(2);
  const kernels::AttentionSizes sizes{
      .heads = call.q.size(1), .kv_heads = call.k.size(1), .queries = queries};
  if (call.stats || call.joins_pairs() || call[kMembers] || call.dropout > 0.0 ||
      batch * queries * keys == 0 || !kernels::cpu().prefers_decode(sizes))
    return {};
  const bool placed = call.has_places();
  std::vector<RowVisits> all;
  std::vector<KeyRange> runs{{.begin = 0, .end = keys, .shift = 0}};
  for (int64_t b = 0; b < batch; ++b) {
    RowPlaces row;
    if (placed) {
      row = row_places(call, b);
      const auto found = runs_of(row);
      if (!found) return {};
      runs = *found;
    }
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t position = placed ? row.queries[i].position : keys - queries + i;
      const auto seen = row_visits(mask_rule(call), position, runs);
      if (!seen) return {};
      all.push_back(*seen);
    }
  }
  return all;
}

// All that visits depend on, as numbers.
std::vector<int64_t> description(const Call& call) {
  std::vector<int64_t> all{call.causal,     call.window,       call.sinks,     call.mask_stride,
                           call.mask_block, call.mask_summary, call.q.size(2), call.k.size(2),
                           call.q.size(0),  call.has_places()};
  for (int n = kQueryPositions; n <= kKeyDocuments; ++n) {
    const std::optional<Tensor>& x = call.slots[n];
    all.push_back(x ? x->size(0) : 0);
    if (!x) continue;
    const auto* const numbers = static_cast<const int64_t*>(x->const_data_ptr());
    all.insert(all.end(), numbers, numbers + x->numel());
  }
  return all;
}

// Visits of recent calls: layers of a model share one mask, and a backend keeps what it makes of
// the visits, by their memory.
class Recent {
 public:
  std::vector<Visits> of(const Call& call, TileSizes tiles) {
    const std::vector<int64_t> wanted = description(call);
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(all_, wanted, &Entry::description);
    if (found != all_.end())
      all_.splice(all_.begin(), all_, found);
    else
      all_.push_front({wanted, visits_of(call, tiles)});
    if (all_.size() > kMost) all_.pop_back();
    return all_.front().visits;
  }

 private:
  struct Entry {
    std::vector<int64_t> description;
    std::vector<Visits> visits;
  };
  static constexpr size_t kMost = 16;
  std::mutex mutex_;
  std::list<Entry> all_;
};

Recent& recent() {
  static auto* const all = new Recent;  // outlives calls at the end of the program
  return *all;
}

}  // namespace

Pairs::Pairs(const Call& call, const kernels::Backend& backend, bool forward) {
  if (!call.q.is_cpu()) {
    const bool has_plan = call[kBlockPairs] || (call[kMembers] && !call.joins_pairs());
    if (!has_plan) visits = recent().of(call, backend.tile_sizes());
    return;
  }
  plans = grouped_plans(call);
  if (plans.empty() && forward) rows = few_rows(call);
  if (plans.empty() && rows.empty()) visits = visits_of(call, backend.tile_sizes());
}

}  // namespace fovea::python
