// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/decode/token_gate.h"

#include <algorithm>

#include "fovea/attention/paths/fused_call.h"

namespace fovea {
namespace {

// The kept rows of sequence b, which lie one behind the other.
template <class T>
const T* group_rows(const CachedRows& rows, int64_t b) {
  return static_cast<const T*>(rows.data) + b * rows.batch +
         rows.sequences[static_cast<size_t>(b)].begin * rows.row;
}

int64_t tokens_of(const CachedRows& rows, int64_t b) {
  return rows.sequences[static_cast<size_t>(b)].rows;
}

// The row that the cache was extended by.
template <class T>
T* added_row(const CachedRows& rows, int64_t b) {
  return const_cast<T*>(group_rows<T>(rows, b)) + (tokens_of(rows, b) - 1) * rows.row;
}

}  // namespace

void TokenGate::append(AttentionCache& cache, const TokenFocus& token) {
  strength_ = spec_.reads_strength() ? token.strength : spec_.strength;
  if (spec_.reads_groups()) {
    groups_ = cache.extend(stream::kGroups);
    for (int64_t b = 0; b < cache.batch(); ++b)
      std::copy_n(token.groups + b * spec_.groups, spec_.groups, added_row<float>(groups_, b));
  }
  if (spec_.reads_members()) {
    members_ = cache.extend(stream::kMembers);
    for (int64_t b = 0; b < cache.batch(); ++b) *added_row<int64_t>(members_, b) = token.members[b];
  }
}

// z = gain g_i.g_j + offset: the keys' factors are the stream's rows.
void TokenGate::use_groups(int64_t b, int64_t queries, double gain, kernels::PairGate& gate) {
  const float* const key = group_rows<float>(groups_, b);
  const float* const mine = key + (tokens_of(groups_, b) - queries) * spec_.groups;
  query_.assign(mine, mine + queries * spec_.groups);
  for (float& x : query_) x *= static_cast<float>(gain);
  gate.columns = spec_.groups;
  gate.key = key;
}

// Straight-through (U-8): z counts shared groups, [h_i, g_i - g_i].[h_j, g_j] with h in {0, 1}^K.
// The second half is 0, and NaN where an assignment is no number.
void TokenGate::use_shared_groups(int64_t b, int64_t queries, kernels::PairGate& gate) {
  const int64_t keys = tokens_of(groups_, b), k = spec_.groups;
  const float* const groups = group_rows<float>(groups_, b);
  const int64_t* const members = group_rows<int64_t>(members_, b);
  gate.columns = 2 * k;
  key_.resize(static_cast<size_t>(keys * gate.columns));
  for (int64_t j = 0; j < keys; ++j) {
    float* const row = key_.data() + j * gate.columns;
    for (int64_t n = 0; n < k; ++n) row[n] = static_cast<float>(members[j] >> n & 1);
    std::copy_n(groups + j * k, k, row + k);
  }
  query_.assign(key_.end() - queries * gate.columns, key_.end());
  for (int64_t n = 0; n < std::ssize(query_); ++n)
    if (n % gate.columns >= k) query_[n] -= query_[n];
  gate.key = key_.data();
}

kernels::PairGate TokenGate::gate(int64_t b, int64_t queries) {
  if (!spec_.reads_groups()) return {};
  const GateForm form = gate_form(spec_, strength_);
  kernels::PairGate gate{.form = form.form,
                         .offset = static_cast<float>(form.offset),
                         .least = static_cast<float>(form.offset),
                         .window = spec_.window,
                         .sinks = spec_.sinks};
  if (spec_.gate == FocusSpec::Gate::straight_through) {
    use_shared_groups(b, queries, gate);
  } else {
    use_groups(b, queries, form.gain, gate);
  }
  gate.query = query_.data();
  return gate;
}

kernels::MemberMask TokenGate::members(int64_t b, int64_t queries) const {
  if (spec_.gate != FocusSpec::Gate::hard || spec_.keeps_every_pair()) return {};
  const int64_t* const key = group_rows<int64_t>(members_, b);
  return {.query = key + tokens_of(members_, b) - queries,
          .key = key,
          .window = spec_.window,
          .sinks = spec_.sinks};
}

}  // namespace fovea
