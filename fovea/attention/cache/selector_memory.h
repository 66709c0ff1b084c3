// Hash tables that selectors (mechanisms/selector.h) read beside the streams of a cache. They are
// made from streams, and made again after a cache was shortened.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fovea/attention/cache/cache.h"

namespace fovea {

struct SelectorInputs;  // call.h
class HashTables;       // hash_tables.h

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
