// The keys of one token of hard Focus, for a caller that decodes without attention()
// (kernels/common/decoder.h): rows of a cache to write, groups to remember, and keys that the token
// reads (spec 11.5).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fovea/attention/cache/cache.h"
#include "fovea/attention/cache/sorted_copy.h"
#include "fovea/kernels/common/grouped_plan.h"

namespace fovea {

/// One layer's keys, token by token. Each token: begin(), then the caller writes key and value into
/// row() of keys() and values() and calls choose(), both in any order; then it reads what choose()
/// listed; then it calls keep().
class TokenKeys {
 public:
  /// `spec`: hard Focus that why_not_decode_rule() has nothing against.
  explicit TokenKeys(const AttentionSpec& spec);

  /// Room for one token of each sequence; the cache must outlive it. UnsupportedError past the
  /// cache's capacity.
  void begin(AttentionCache& cache, SortedCopy& sorted);
  /// Where the token reads: the cache, or its copy in order of groups.
  const CachedRows& keys() const { return keys_; }
  const CachedRows& values() const { return values_; }
  int64_t row(int64_t b) const;
  /// How it finds its keys (docs/kernels/grouped.md).
  PlanName plan() const { return sorted_ != nullptr ? PlanWord::sorted : PlanWord::scan; }

  /// The rows that each sequence's token reads, valid until the next call; none: all.
  IntRows choose(std::span<const uint64_t> members);
  void keep();

 private:
  FocusSpec focus_;
  GroupedRule rule_;
  SortedKeys* sorted_ = nullptr;  // null: the cache is read where a scan of its groups finds keys
  CachedRows cached_keys_, cached_values_, members_;
  CachedRows keys_, values_;
  IntRowList seen_;
};

}  // namespace fovea
