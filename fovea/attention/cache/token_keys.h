// The keys of one token of hard Focus, for a caller that decodes without attention() (kernels/cpu/
// decoder.h): rows of a cache to write, groups to remember, and what the token reads (spec 11.5).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fovea/attention/cache/cache.h"
#include "fovea/attention/cache/sorted_keys.h"
#include "fovea/kernels/common/grouped_plan.h"
#include "fovea/kernels/cpu/decoder.h"

namespace fovea {

/// Room for one token in the cache, which must outlive it. The caller writes key and value into
/// row() of keys() and values() and calls choose(), both in any order; then it reads what seen()
/// lists; then it calls keep(). UnsupportedError past the cache's capacity.
class TokenKeys final : public kernels::KeyChoice {
 public:
  /// `spec`: hard Focus that why_not_decode_rule() has nothing against.
  TokenKeys(const AttentionSpec& spec, AttentionCache& cache);

  /// Where the token reads: the cache, or its copy in order of groups.
  const CachedRows& keys() const { return keys_; }
  const CachedRows& values() const { return values_; }
  int64_t row() const { return row_; }
  /// How it finds its keys (docs/kernels/grouped.md).
  PlanName plan() const { return sorted_ != nullptr ? PlanWord::sorted : PlanWord::scan; }

  void choose(std::span<const uint64_t> members) override;
  std::span<const std::vector<int32_t>> seen() const override { return seen_; }
  void keep() override;

 private:
  FocusSpec focus_;
  GroupedRule rule_;
  SortedKeys* sorted_;  // null: the cache is read where a scan of its groups finds keys
  CachedRows cached_keys_, cached_values_, members_;
  CachedRows keys_, values_;
  int64_t row_ = 0;
  std::vector<std::vector<int32_t>> seen_;
};

}  // namespace fovea
