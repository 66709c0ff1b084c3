// The cache of token stores: finds the store of a source, or makes it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "fovea/data/corpus.h"

namespace fovea {

/// How a large source is read: parts of at least `part_bytes` (as stored) side by side on `threads`
/// threads. A source of one part is read by the caller's thread.
struct PartRules {
  int64_t part_bytes = 16 << 20;
  int threads = 0;  // 0 = every core
};

/// The store of `source` in the folder `cache`, made if it is not there or damaged. `progress`
/// arrives with the numbers of the source and is passed on filled in, always by the caller's
/// thread. Parts that are done stay where preparation is interrupted or killed; the next call goes
/// on from them. A second process that needs the same store waits.
TokenStore find_or_make_store(const std::filesystem::path& cache, const DataSource& source,
                              const DataConfig& config, const Tokenizer& tokenizer,
                              CorpusProgress progress, const CorpusProgressCallback& callback,
                              const PartRules& rules = {});

}  // namespace fovea
