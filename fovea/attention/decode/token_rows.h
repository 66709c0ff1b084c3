// Rows that the compiled decoder reads and writes for the next token of every sequence, at one
// layer (kernels/common/decoder.h). In form `decoder` they are rows of the cache: a run of them, or
// with hard Focus on the CPU those that the token's groups choose (spec 11.5). In the other forms
// they are rows of the tokens alone, which TokenStep or cached_attention() appends.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fovea/attention/cache/cache.h"
#include "fovea/attention/cache/sorted_copy.h"
#include "fovea/attention/mechanism.h"
#include "fovea/kernels/common/decoder.h"

namespace fovea {

/// The cache of one text, of one sequence or more, at one layer.
struct TokenCache {
  AttentionCache* cache = nullptr;
  SortedCopy* sorted = nullptr;  ///< of its keys
};

template <class T>
class TokenRows {
 public:
  /// `form`: token_form() of the spec.
  TokenRows(const AttentionSpec& spec, TokenForm form);
  TokenRows(const TokenRows&) = delete;

  /// Room for one token of every sequence of the texts, which follow one another. The caches must
  /// outlive the step. UnsupportedError past a cache's capacity.
  void begin(std::span<const TokenCache> texts, std::span<const kernels::TokenPosition> tokens);
  /// Valid until the next begin(); without CallerAttention.
  kernels::DecoderLayerStep<T> step();

  /// How a text's token finds its keys with hard Focus (docs/kernels/grouped.md).
  PlanName plan(size_t text) const;
  /// In forms other than `decoder`: the tokens' keys and values [sequence][head][row 0].
  kernels::HeadRows<T> new_keys() { return new_rows(new_keys_); }
  kernels::HeadRows<T> new_values() { return new_rows(new_values_); }

 private:
  // One text's keys with hard Focus.
  struct Text {
    int64_t first = 0;             // of its sequences
    SortedKeys* sorted = nullptr;  // null: a scan of the memberships finds keys in the cache
    CachedRows keys, values, members;
  };
  void place_run(int64_t first, AttentionCache& cache,
                 std::span<const kernels::TokenPosition> tokens);
  void place_members(int64_t first, AttentionCache& cache);
  void place_chosen(int64_t first, const TokenCache& text,
                    std::span<const kernels::TokenPosition> tokens);
  void place_new();
  void place_temperature_sums(int64_t first, AttentionCache& cache);
  void place_caches(int64_t first, int64_t count, const CachedRows& keys, const CachedRows& values);
  void place_shared(int64_t sequence, std::span<const SharedRows> keys,
                    std::span<const SharedRows> values);
  kernels::HeadRows<T> new_rows(std::vector<T>& rows) const;
  IntRows choose(std::span<const uint64_t> members);
  void keep();

  const AttentionSpec spec_;  // in mask terms
  const TokenForm form_;
  std::vector<kernels::SequenceStep> sequences_;
  std::vector<kernels::SequenceCache<T>> caches_;
  std::vector<std::vector<kernels::SharedRun<T>>> shared_;  // of each sequence
  std::vector<T> new_keys_, new_values_;
  std::vector<Text> texts_;
  IntRowList seen_;
};

}  // namespace fovea
