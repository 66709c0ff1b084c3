// A copy of a cache's keys sorted by group (sorted_keys.h), and the rule for when it is made.
//
// A long text that is written token by token with hard Focus gets the copy; it follows its cache.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "fovea/attention/cache/cache.h"
#include "fovea/attention/cache/selector_memory.h"
#include "fovea/attention/cache/sorted_keys.h"

namespace fovea {

/// The sorted copy of one cache, where there is one. Each call names the same cache.
class SortedCopy {
 public:
  /// The copies of a model's layers are made in different steps, so that no step takes long.
  explicit SortedCopy(int64_t layer = 0) : layer_(layer) {}
  /// For one query of each sequence, whose token is the last of the cache. Returns the copy with
  /// all rows of the cache, or null where a scan of the memberships is better. Counts these
  /// queries.
  SortedKeys* for_queries(const AttentionCache& cache, const FocusSpec& focus);
  /// The same for a token that is not in the cache yet, with room for it.
  SortedKeys* for_token(const AttentionCache& cache, const FocusSpec& focus);
  /// Forgets what its cache forgets.
  void truncate(std::span<const int64_t> lengths);
  SortedCopy fork() const;
  int64_t bytes() const { return (keys_ ? keys_->bytes() : 0) + tables.bytes(); }

  SelectorMemory tables;  ///< of MagicPIG

 private:
  bool wanted(const AttentionCache& cache, const FocusSpec& focus);
  std::shared_ptr<SortedKeys> keys_;  // made again where it is lost
  int64_t layer_ = 0, single_queries_ = 0, sorting_from_ = 0;
};

}  // namespace fovea
