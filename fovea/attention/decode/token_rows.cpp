// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/decode/token_rows.h"

#include <ATen/core/Tensor.h>

#include "fovea/attention/paths/grouped.h"
#include "fovea/kernels/backend.h"

namespace fovea {
namespace {

template <class T>
kernels::HeadRows<T> heads_of(const CachedRows& rows, int64_t sequence) {
  return {static_cast<T*>(rows.data) + sequence * rows.batch, rows.batch, rows.head, rows.row};
}

// The row that the cache was extended by.
int64_t added_row(const CachedRows& rows, int64_t sequence) {
  const KeptRows& kept = rows.sequences[static_cast<size_t>(sequence)];
  return kept.begin + kept.rows - 1;
}

}  // namespace

template <class T>
TokenRows<T>::TokenRows(const AttentionSpec& spec, TokenForm form)
    : spec_(in_mask_terms(spec)), form_(form) {}

template <class T>
void TokenRows<T>::begin(std::span<const TokenCache> texts,
                         std::span<const kernels::TokenPosition> tokens) {
  sequences_.assign(tokens.size(), {});
  caches_.assign(tokens.size(), {});
  shared_.resize(tokens.size());
  texts_.clear();
  if (form_ != TokenForm::decoder) place_new();
  int64_t first = 0;
  for (const TokenCache& text : texts) {
    const int64_t count = text.cache->batch();
    if (form_ == TokenForm::decoder) {
      const auto own = tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
      const bool chosen = spec_.focus.active() && text.cache->device().is_cpu();
      chosen ? place_chosen(first, text, own) : place_run(first, *text.cache, own);
    }
    if (form_ != TokenForm::operations) place_temperature_sums(first, *text.cache);
    first += count;
  }
}

template <class T>
kernels::DecoderLayerStep<T> TokenRows<T>::step() {
  kernels::DecoderLayerStep<T> step{.caches = caches_, .sequences = sequences_};
  if (texts_.empty()) return step;
  step.choice = {.object = this,
                 .choose =
                     [](void* rows, std::span<const uint64_t> members) {
                       return static_cast<TokenRows*>(rows)->choose(members);
                     },
                 .keep = [](void* rows) { static_cast<TokenRows*>(rows)->keep(); }};
  return step;
}

template <class T>
PlanName TokenRows<T>::plan(size_t text) const {
  if (texts_.empty()) return {};
  return texts_[text].sorted != nullptr ? PlanWord::sorted : PlanWord::scan;
}

template <class T>
void TokenRows<T>::place_run(int64_t first, AttentionCache& cache,
                             std::span<const kernels::TokenPosition> tokens) {
  const CachedRows keys = cache.extend_in_pages(stream::kKeys),
                   values = cache.extend_in_pages(stream::kValues);
  place_caches(first, cache.batch(), keys, values);
  for (size_t b = 0; b < tokens.size(); ++b) {
    if (!keys.shared.empty())
      place_shared(first + static_cast<int64_t>(b), keys.shared[b], values.shared[b]);
    const KeptRows& kept = keys.sequences[b];
    const KeyRange run{.begin = 0, .end = kept.rows, .shift = kept.first_position};
    sequences_[static_cast<size_t>(first) + b] = {
        .first = kept.begin,
        .key_row = kept.rows - 1,
        .seen = row_visits(spec_.mask, tokens[b].position, {&run, 1}).value()};
  }
  if (spec_.focus.active()) place_members(first, cache);
}

// Memberships that a device's decoder reads and writes.
template <class T>
void TokenRows<T>::place_members(int64_t first, AttentionCache& cache) {
  const CachedRows members = cache.extend(stream::kMembers);
  for (int64_t b = 0; b < cache.batch(); ++b)
    sequences_[static_cast<size_t>(first + b)].members =
        static_cast<uint64_t*>(members.data) + b * members.batch +
        members.sequences[static_cast<size_t>(b)].begin;
}

template <class T>
void TokenRows<T>::place_chosen(int64_t first, const TokenCache& text,
                                std::span<const kernels::TokenPosition> tokens) {
  AttentionCache& cache = *text.cache;
  Text of{.first = first, .sorted = text.sorted->for_token(cache, spec_.focus)};
  of.keys = cache.extend_in_pages(stream::kKeys);
  of.values = cache.extend_in_pages(stream::kValues);
  of.members = cache.extend(stream::kMembers);
  place_caches(first, cache.batch(), of.sorted != nullptr ? of.sorted->keys() : of.keys,
               of.sorted != nullptr ? of.sorted->values() : of.values);
  for (size_t b = 0; b < tokens.size(); ++b) {
    const auto n = static_cast<int64_t>(b);
    const KeptRows& kept = of.keys.sequences[b];
    if (of.sorted == nullptr && !of.keys.shared.empty())
      place_shared(first + n, of.keys.shared[b], of.values.shared[b]);
    sequences_[static_cast<size_t>(first) + b] = {
        .first = of.sorted != nullptr ? 0 : kept.begin,
        .key_row = of.sorted != nullptr ? of.sorted->next_row(n) : kept.rows - 1,
        .seen = {.near = {.begin = 0, .end = tokens[b].position + 1}, .far = {}}};
  }
  texts_.push_back(of);
}

// The pages' rows as if key 0 stood before them.
template <class T>
void TokenRows<T>::place_shared(int64_t sequence, std::span<const SharedRows> keys,
                                std::span<const SharedRows> values) {
  static_assert(AttentionCache::kPage % kernels::kSharedKeys == 0);
  const auto rows_of = [](const SharedRows& pages) {
    const at::Tensor& x = pages.rows;
    T* const data = static_cast<T*>(x.data_ptr()) + pages.sequence * x.stride(0);
    return kernels::HeadRows<T>{data - pages.begin * x.stride(1), 0, x.stride(2), x.stride(1)};
  };
  std::vector<kernels::SharedRun<T>>& runs = shared_[static_cast<size_t>(sequence)];
  runs.clear();
  for (size_t n = 0; n < keys.size(); ++n)
    runs.push_back({.end = keys[n].end, .keys = rows_of(keys[n]), .values = rows_of(values[n])});
  caches_[static_cast<size_t>(sequence)].shared = runs;
}

template <class T>
void TokenRows<T>::place_new() {
  const size_t count = caches_.size();
  for (std::vector<T>* rows : {&new_keys_, &new_values_})
    rows->resize(count * static_cast<size_t>(spec_.kv_heads * spec_.head_dim));
  for (size_t b = 0; b < count; ++b) {
    const auto of = [b](kernels::HeadRows<T> rows) {
      rows.data += static_cast<int64_t>(b) * rows.batch;
      return rows;
    };
    caches_[b] = {.keys = of(new_keys()), .values = of(new_values())};
  }
}

template <class T>
kernels::HeadRows<T> TokenRows<T>::new_rows(std::vector<T>& rows) const {
  const int64_t d = spec_.head_dim;
  return {rows.data(), spec_.kv_heads * d, d, d};
}

template <class T>
void TokenRows<T>::place_temperature_sums(int64_t first, AttentionCache& cache) {
  if (!keeps_prefix_sum(spec_.temperature)) return;
  const CachedRows sums = cache.extend(stream::kTemperature);
  for (int64_t b = 0; b < cache.batch(); ++b)
    sequences_[static_cast<size_t>(first + b)].temperature_sum =
        static_cast<double*>(sums.data) + b * sums.batch + added_row(sums, b) * sums.row;
}

template <class T>
void TokenRows<T>::place_caches(int64_t first, int64_t count, const CachedRows& keys,
                                const CachedRows& values) {
  for (int64_t b = 0; b < count; ++b)
    caches_[static_cast<size_t>(first + b)] = {.keys = heads_of<T>(keys, b),
                                               .values = heads_of<T>(values, b)};
}

template <class T>
IntRows TokenRows<T>::choose(std::span<const uint64_t> members) {
  const GroupedRule rule = grouped_rule(spec_);
  const bool all = spec_.focus.keeps_every_pair();
  seen_.clear();
  for (const Text& text : texts_) {
    auto* const bits = static_cast<uint64_t*>(text.members.data);
    const size_t count = text.members.sequences.size();
    const auto own = members.subspan(static_cast<size_t>(text.first), count);
    const auto kept = [&](size_t b) {
      const KeptRows& of = text.members.sequences[b];
      return std::span(bits + static_cast<int64_t>(b) * text.members.batch + of.begin,
                       static_cast<size_t>(of.rows));
    };
    for (size_t b = 0; b < count; ++b) kept(b).back() = own[b];
    if (text.sorted != nullptr) text.sorted->append_token(own);
    for (size_t b = 0; b < count && !all; ++b) {
      if (text.sorted != nullptr) {
        seen_.add_row(text.sorted->slots_seen(spec_.focus, static_cast<int64_t>(b)));
        continue;
      }
      kernels::cpu().run(kernels::KeysOfLast{
          .rule = rule, .members = kept(b), .positions = {}, .seen = &seen_.values});
      seen_.end_row();
    }
  }
  return seen_.view();
}

template <class T>
void TokenRows<T>::keep() {
  for (const Text& text : texts_)
    if (text.sorted != nullptr) text.sorted->keep_token(text.keys, text.values);
}

template class TokenRows<float>;
template class TokenRows<BFloat16>;

}  // namespace fovea
