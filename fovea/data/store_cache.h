// The cache of token stores: finds the store of a source, or makes it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "fovea/data/corpus.h"

namespace fovea {

/// The store of `source` in the folder `cache`, made if it is not there or damaged. `progress`
/// arrives with the numbers of the source and is passed on filled in.
TokenStore find_or_make_store(const std::filesystem::path& cache, const DataSource& source,
                              const DataConfig& config, const Tokenizer& tokenizer,
                              CorpusProgress progress, const CorpusProgressCallback& callback);

}  // namespace fovea
