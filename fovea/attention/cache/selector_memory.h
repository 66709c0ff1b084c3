// Data that selectors read beside a cache's keys and values (mechanisms/selector.h): streams of
// keys by component, running sums of values, the prompt's length, and hash tables. The tables are
// made from streams, and made again after a cache was shortened.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "fovea/attention/cache/cache.h"

namespace fovea {

struct SelectorInputs;  // call.h
class HashTables;       // hash_tables.h

/// Appends the rows that selectors keep of the next tokens.
void append_selector_rows(AttentionCache& cache, const AttentionSpec& spec,
                          const at::Tensor& k_bgtd, const at::Tensor& v_bgte);

/// What the streams tell about all sequences, or one of them.
SelectorInputs selector_inputs(const AttentionSpec& spec, const AttentionCache& cache,
                               std::optional<int64_t> sequence);

/// Hash tables of a cache whose sequences are of one length, made from its streams.
class SelectorMemory {
 public:
  /// Adds to `inputs` what a call with the last `queries` tokens of the cache reads.
  void complete(SelectorInputs& inputs, const AttentionSpec& spec, const AttentionCache& cache,
                int64_t queries);
  void truncate(std::span<const int64_t> lengths);
  int64_t bytes() const;

 private:
  std::shared_ptr<const HashTables> tables_;
};

}  // namespace fovea
