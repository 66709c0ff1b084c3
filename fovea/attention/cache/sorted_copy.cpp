// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cache/sorted_copy.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "fovea/attention/attention.h"
#include "fovea/attention/mechanisms/focus.h"

namespace fovea {

bool SortedCopy::wanted(const AttentionCache& cache, const FocusSpec& focus) {
  constexpr int64_t kQueriesBefore = 32;  // sorting takes about as long as it saves in these
  const std::vector<int64_t> lengths = cache.lengths();
  const int64_t shortest = std::ranges::min(lengths);
  if (shortest < SortedKeys::kLeastKeys || focus_is_neutral(focus, {}, std::ranges::max(lengths)))
    return false;
  if (++single_queries_ <= kQueriesBefore + layer_) return false;
  if (keys_ && !keys_->pays()) keys_ = nullptr;
  if (keys_ || shortest < sorting_from_) return keys_ != nullptr;
  const auto pays = [&](int64_t b) {
    return SortedKeys::pays(cache.rows(stream::kMembers, b).squeeze(-1));
  };
  bool all = true;
  for (int64_t b = 0; b < cache.batch() && all; ++b) all = pays(b);
  if (!all) sorting_from_ = 2 * shortest;  // looked at again then
  return all;
}

SortedKeys* SortedCopy::for_queries(const AttentionCache& cache, const FocusSpec& focus) {
  if (!wanted(cache, focus)) return nullptr;
  if (!keys_) keys_ = std::make_shared<SortedKeys>(focus.window, cache.batch());
  for (int64_t b = 0; b < cache.batch(); ++b) {
    const int64_t from = keys_->length(b);
    const int64_t count = cache.stream_length(stream::kMembers, b) - from;
    if (count <= 0) continue;
    const auto fresh = [&](const char* name) { return cache.rows(name, b).narrow(1, from, count); };
    keys_->append(b, fresh(stream::kKeys).transpose(1, 2), fresh(stream::kValues).transpose(1, 2),
                  fresh(stream::kMembers).squeeze(-1));
  }
  return keys_.get();
}

SortedKeys* SortedCopy::for_token(const AttentionCache& cache, const FocusSpec& focus) {
  SortedKeys* const keys = for_queries(cache, focus);
  if (keys != nullptr) keys->make_room_for_token();
  return keys;
}

void SortedCopy::truncate(std::span<const int64_t> lengths) {
  for (int64_t b = 0; keys_ && b < std::ssize(lengths); ++b) keys_->truncate(b, lengths[b]);
  sorting_from_ = 0;
  tables.truncate(lengths);
}

SortedCopy SortedCopy::fork() const {
  SortedCopy copy = *this;
  if (keys_) copy.keys_ = std::make_shared<SortedKeys>(keys_->clone());
  return copy;
}

}  // namespace fovea
