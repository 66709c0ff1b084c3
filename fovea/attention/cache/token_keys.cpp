// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cache/token_keys.h"

#include "fovea/attention/paths/grouped.h"
#include "fovea/kernels/cpu/grouped.h"

namespace fovea {

TokenKeys::TokenKeys(const AttentionSpec& spec, AttentionCache& cache)
    : focus_(spec.focus),
      rule_(grouped_rule(spec)),
      sorted_(cache.sorted_for_token(spec)),
      cached_keys_(cache.extend("keys")),
      cached_values_(cache.extend("values")),
      members_(cache.extend("members")),
      keys_(sorted_ != nullptr ? sorted_->keys() : cached_keys_),
      values_(sorted_ != nullptr ? sorted_->values() : cached_values_),
      row_(sorted_ != nullptr ? sorted_->next_row() : cached_keys_.rows - 1) {}

void TokenKeys::choose(std::span<const uint64_t> members) {
  auto* const all = static_cast<uint64_t*>(members_.data);
  const auto bits = [&](size_t b) {
    return std::span(all + static_cast<int64_t>(b) * members_.batch,
                     static_cast<size_t>(members_.rows));
  };
  for (size_t b = 0; b < members.size(); ++b) bits(b).back() = members[b];
  if (sorted_ != nullptr) sorted_->append_token(members);
  if (focus_.keeps_every_pair()) return;
  for (size_t b = 0; b < members.size(); ++b) {
    seen_.push_back(sorted_ != nullptr ? sorted_->slots_seen(focus_, static_cast<int64_t>(b))
                                       : kernels::keys_seen_by_last(rule_, bits(b)));
  }
}

void TokenKeys::keep() {
  if (sorted_ != nullptr) sorted_->keep_token(cached_keys_, cached_values_);
}

}  // namespace fovea
