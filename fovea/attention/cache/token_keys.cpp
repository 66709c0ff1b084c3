// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cache/token_keys.h"

#include "fovea/attention/paths/grouped.h"
#include "fovea/kernels/backend.h"

namespace fovea {

TokenKeys::TokenKeys(const AttentionSpec& spec) : focus_(spec.focus), rule_(grouped_rule(spec)) {}

void TokenKeys::begin(AttentionCache& cache, SortedCopy& sorted) {
  sorted_ = sorted.for_token(cache, focus_);
  cached_keys_ = cache.extend(stream::kKeys);
  cached_values_ = cache.extend(stream::kValues);
  members_ = cache.extend(stream::kMembers);
  keys_ = sorted_ != nullptr ? sorted_->keys() : cached_keys_;
  values_ = sorted_ != nullptr ? sorted_->values() : cached_values_;
}

int64_t TokenKeys::row(int64_t b) const {
  if (sorted_ != nullptr) return sorted_->next_row(b);
  const KeptRows& kept = cached_keys_.sequences[b];
  return kept.begin + kept.rows - 1;
}

IntRows TokenKeys::choose(std::span<const uint64_t> members) {
  auto* const all = static_cast<uint64_t*>(members_.data);
  const auto bits = [&](size_t b) {
    const KeptRows& kept = members_.sequences[b];
    return std::span(all + static_cast<int64_t>(b) * members_.batch + kept.begin,
                     static_cast<size_t>(kept.rows));
  };
  for (size_t b = 0; b < members.size(); ++b) bits(b).back() = members[b];
  if (sorted_ != nullptr) sorted_->append_token(members);
  if (focus_.keeps_every_pair()) return {};
  seen_.clear();
  for (size_t b = 0; b < members.size(); ++b) {
    if (sorted_ != nullptr) {
      seen_.add_row(sorted_->slots_seen(focus_, static_cast<int64_t>(b)));
      continue;
    }
    kernels::cpu().run(kernels::KeysOfLast{
        .rule = rule_, .members = bits(b), .positions = {}, .seen = &seen_.values});
    seen_.end_row();
  }
  return seen_.view();
}

void TokenKeys::keep() {
  if (sorted_ != nullptr) sorted_->keep_token(cached_keys_, cached_values_);
}

}  // namespace fovea
